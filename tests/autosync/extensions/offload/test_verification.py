"""Swapping in the strategy's document, and what becomes of it elsewhere."""

from dataclasses import replace

import pytest

from autosync.documents import from_json, to_json
from autosync.errors import InvalidStrategy, NotSupported
from autosync.exports import settings_for
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.verification import check_strategy
from autosync.extensions.staleness.document import Staleness
from autosync.interop.autodist_strategy import export_strategy
from autosync.population import concatenate, decode, encode
from autosync.simulator.sharded_strategy import fully_sharded
from autosync.strategy import AllReduce, ParameterServer, ReduceScatter, Schedule, Strategy
from autosync.strategy_description import describe
from autosync.verification import verify
from tests.domains import domain_of, layered_graph
from tests.simulator.worked_examples import cluster_of, strategy_of

DOMAIN = domain_of(layered_graph(), cluster_of())
PLAIN = strategy_of(DOMAIN, lambda v: AllReduce(0))
SWAPPED = PLAIN.carrying(Offload(3_000_000_000))
WITH_STATE = PLAIN.carrying(Offload(3_000_000_000, optimizer_state=True))
EARLIER = PLAIN.carrying(Offload(3_000_000_000, values=True))


@pytest.mark.parametrize("budget", [0, -5, 2**63])
def test_a_budget_is_a_number_of_bytes(budget: int) -> None:
    with pytest.raises(InvalidStrategy, match=f"budget_bytes is {budget}"):
        Offload(budget)
    text = to_json(SWAPPED).replace("3000000000", str(budget))
    with pytest.raises(InvalidStrategy, match=f"budget_bytes is {budget}"):
        from_json(Strategy, text)


def test_populations_carry_it() -> None:
    each = encode([PLAIN, SWAPPED, WITH_STATE, EARLIER], DOMAIN)
    carried = [each.entry(row, Offload) for row in range(4)]
    assert carried == [None, *SWAPPED.extensions, *WITH_STATE.extensions, *EARLIER.extensions]
    joined = concatenate([each.take([1]), each.take([0, 2, 3])])
    assert decode(joined, 3, DOMAIN) == EARLIER
    assert decode(joined, 2, DOMAIN) == WITH_STATE
    assert decode(joined, 0, DOMAIN) == SWAPPED
    assert decode(joined, 1, DOMAIN).extensions == ()


def test_it_is_sound_beside_this_runtime_and_ddp_but_not_under_fully_shard() -> None:
    verify(SWAPPED, DOMAIN)
    verify(replace(SWAPPED, schedule=Schedule("ddp")), DOMAIN)
    sharded = fully_sharded(DOMAIN, 4).carrying(*SWAPPED.extensions)
    with pytest.raises(InvalidStrategy, match="fully_shard runs it"):
        verify(sharded, DOMAIN)


def test_it_is_told_in_words() -> None:
    assert describe(SWAPPED) == f"{describe(PLAIN)}; activations swapped to host memory within 3 GB"
    ddp = replace(SWAPPED, schedule=Schedule("ddp"))
    assert "torch's DDP" in describe(ddp)
    assert describe(ddp).endswith("within 3 GB")
    words = f"{describe(PLAIN)}; activations and optimizer state swapped to host memory within 3 GB"
    assert describe(WITH_STATE) == words


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (strategy_of(DOMAIN, lambda v: ReduceScatter(0, True)), "updated by all ranks in parts"),
        (strategy_of(DOMAIN, lambda v: ParameterServer(0, 0)), "updated by its parameter server"),
        (replace(PLAIN, schedule=Schedule(overlap_forward=True)), "during the next forward"),
        (PLAIN.carrying(Staleness(1)), "its updates are late"),
    ],
)
def test_state_in_use_between_steps_is_not_swapped(other: Strategy, why: str) -> None:
    with pytest.raises(InvalidStrategy, match=why) as refused:
        check_strategy(other.carrying(*WITH_STATE.extensions))
    assert refused.value.thing == "swap.optimizer_state"
    check_strategy(other.carrying(*SWAPPED.extensions))


def test_it_goes_with_plans_that_update_everything_within_the_step() -> None:
    returned = strategy_of(DOMAIN, lambda v: ParameterServer(0, 0, returns_gradients=True))
    for strategy in (PLAIN, strategy_of(DOMAIN, lambda v: ReduceScatter(0)), returned):
        verify(strategy.carrying(*WITH_STATE.extensions), DOMAIN)
    verify(replace(WITH_STATE, schedule=Schedule("ddp")), DOMAIN)


def test_swapped_values_of_earlier_versions_are_read_and_do_not_run() -> None:
    with pytest.raises(InvalidStrategy, match="swaps values of parameters") as refused:
        verify(EARLIER, DOMAIN)
    assert refused.value.thing == "swap.values"
    assert "Leave values out" in refused.value.remedy


def test_formats_that_cannot_express_swapping_refuse_it() -> None:
    for framework in ("ddp", "deepspeed"):
        with pytest.raises(NotSupported, match="activations swapped to host memory"):
            settings_for(framework, SWAPPED, DOMAIN)
    with pytest.raises(NotSupported, match="activations swapped to host memory"):
        export_strategy(SWAPPED, DOMAIN)
