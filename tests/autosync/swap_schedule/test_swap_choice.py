"""Swapping in the strategy's document, and what becomes of it elsewhere."""

from dataclasses import replace

import pytest

from autosync.documents import from_json, to_json
from autosync.errors import InvalidStrategy, NotSupported
from autosync.framework_settings.framework_table import settings_for
from autosync.interop.strategy_export import export_strategy
from autosync.population import concatenate, decode, encode
from autosync.simulator.sharded_strategy import fully_sharded
from autosync.strategy import AllReduce, ParameterServer, ReduceScatter, Schedule, Strategy
from autosync.strategy_description import describe
from autosync.swap_schedule.swap_choice import Swap
from autosync.verification import check_swap, verify
from tests.domains import domain_of, layered_graph
from tests.simulator.worked_examples import cluster_of, strategy_of

DOMAIN = domain_of(layered_graph(), cluster_of())
PLAIN = strategy_of(DOMAIN, lambda v: AllReduce(0))
SWAPPED = replace(PLAIN, swap=Swap(3_000_000_000))
WITH_STATE = replace(PLAIN, swap=Swap(3_000_000_000, optimizer_state=True))


def test_strategies_without_it_keep_their_text() -> None:
    assert "swap" not in to_json(PLAIN)
    assert from_json(Strategy, to_json(SWAPPED)) == SWAPPED
    assert SWAPPED.id != PLAIN.id
    assert replace(PLAIN, swap=Swap(1)).id != SWAPPED.id


def test_strategies_that_swap_activations_alone_keep_their_text() -> None:
    assert '"swap":{"budget_bytes":3000000000}' in to_json(SWAPPED)
    assert from_json(Strategy, to_json(WITH_STATE)) == WITH_STATE
    assert WITH_STATE.id != SWAPPED.id


@pytest.mark.parametrize("budget", [0, -5, 2**63])
def test_a_budget_is_a_number_of_bytes(budget: int) -> None:
    with pytest.raises(InvalidStrategy, match=f"budget_bytes is {budget}"):
        Swap(budget)
    text = to_json(SWAPPED).replace("3000000000", str(budget))
    with pytest.raises(InvalidStrategy, match=f"budget_bytes is {budget}"):
        from_json(Strategy, text)


def test_populations_carry_it() -> None:
    both = encode([PLAIN, SWAPPED, WITH_STATE], DOMAIN)
    assert both.swap_bytes.tolist() == [0, 3_000_000_000, 3_000_000_000]
    assert both.swap_state.tolist() == [False, False, True]
    joined = concatenate([both.take([1]), both.take([0, 2])])
    assert decode(joined, 2, DOMAIN).swap == WITH_STATE.swap
    assert decode(joined, 0, DOMAIN).swap == SWAPPED.swap
    assert decode(joined, 1, DOMAIN).swap is None


def test_it_is_sound_beside_this_runtime_and_ddp_but_not_under_fully_shard() -> None:
    verify(SWAPPED, DOMAIN)
    verify(replace(SWAPPED, schedule=Schedule("ddp")), DOMAIN)
    sharded = replace(fully_sharded(DOMAIN, 4), swap=SWAPPED.swap)
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
        (replace(PLAIN, schedule=Schedule(overlap_forward=True)), "run into the next forward"),
        (replace(PLAIN, staleness=1), "its updates are late"),
    ],
)
def test_state_that_is_not_idle_between_steps_is_not_swapped(other: Strategy, why: str) -> None:
    with pytest.raises(InvalidStrategy, match=why) as refused:
        check_swap(replace(other, swap=WITH_STATE.swap))
    assert refused.value.thing == "swap.optimizer_state"
    check_swap(replace(other, swap=SWAPPED.swap))


def test_state_goes_with_plans_that_update_everything_within_the_step() -> None:
    for strategy in (PLAIN, strategy_of(DOMAIN, lambda v: ReduceScatter(0))):
        verify(replace(strategy, swap=WITH_STATE.swap), DOMAIN)
    verify(replace(WITH_STATE, schedule=Schedule("ddp")), DOMAIN)


def test_what_cannot_say_it_refuses_it() -> None:
    for framework in ("ddp", "deepspeed", "horovod"):
        with pytest.raises(NotSupported, match="swaps activations"):
            settings_for(framework, SWAPPED, DOMAIN)
    with pytest.raises(NotSupported, match="moves activations to host memory"):
        export_strategy(SWAPPED, DOMAIN)
