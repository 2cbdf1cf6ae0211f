"""Where plain designs do not fit the devices' memory, swapped ones stand beside those that do; and
which come back with swapping, by what their trials said."""

from dataclasses import replace
from typing import get_args

import pytest

from autosync.api.engine.prediction_ranking import best_by_prediction
from autosync.api.engine.tuning_request import TuningRequest
from autosync.cluster import Device
from autosync.domain import Domain, Optimizer
from autosync.errors import InvalidInput
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.prediction import swap_budget_bytes
from autosync.extensions.offload.proposals import ENDINGS, PROPOSER, plain_name, swapped_forms
from autosync.population import encode
from autosync.search.designs.design_table import (
    DESIGNS,
    check_any_fits,
    hand_designed,
    lies_in,
    torch_designs,
)
from autosync.search.edits.local_search import refined
from autosync.search.loop.design_candidates import known_designs
from autosync.search.loop.outcome import is_ddp
from autosync.search.loop.tuning_store import Candidate, MemoryStore, Proposal
from autosync.search.space import Space
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.explanation import predicted_slowdown
from autosync.simulator.memory.memory_check import check_memory, most_peak_bytes
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.trials.contract import ErrorKind, TrialError, TrialResult
from autosync.verification import verify
from tests.autosync.extensions.offload.test_prediction import four, heavy
from tests.domains import domain_of, grid_cluster, layered_graph
from tests.search.edits.strategies import parents_among

OUTPUT = 2_000_000
TIMELINE = TimelineSimulator()
LAYERS, VARIABLE = 12, (1000, 100)


def layered(memory_gb: float | None, device_type: str = "arena") -> Domain:
    """12 layers of 0.4 MB on four devices, each layer's output of 2 MB, under AdamW."""
    graph = layered_graph((VARIABLE,) * LAYERS)
    operations = tuple(replace(each, output_bytes=OUTPUT) for each in graph.operations)
    cluster = grid_cluster(4)
    device = Device(device_type, memory_gb=memory_gb)
    nodes = tuple(replace(node, devices=(device,)) for node in cluster.nodes)
    return domain_of(
        replace(graph, operations=operations),
        replace(cluster, nodes=nodes),
        optimizer=Optimizer("adamw", True, 2),
    )


def plain_designs(domain: Domain) -> dict[str, Strategy]:
    return dict([*hand_designed(domain, Space()), *torch_designs(domain, Space())])


def peak_gb(domain: Domain, strategy: Strategy) -> float:
    return most_peak_bytes(domain, [strategy])[0] / 1e9


@pytest.mark.parametrize(
    ("memory_gb", "device_type"), [(1.0, "arena"), (None, "arena"), (0.0035, "cpu")]
)
def test_nothing_is_swapped_where_things_fit_or_nothing_can_be(
    memory_gb: float | None, device_type: str
) -> None:
    domain = four(memory_gb, device_type=device_type)
    assert PROPOSER.fitting_forms(domain, [*plain_designs(domain).items()], Space()) == []


def test_every_answer_swaps_where_activations_do_not_fit() -> None:
    tight = four(0.0035)
    check_any_fits(tight, Space())
    ranked = known_designs(tight, Space(), TimelineSimulator())
    assert ranked[0].origin == "ddp"
    names = {each.origin for each in ranked[1:]}
    assert {"all_reduce_25mb_swapped", "all_reduce_per_variable_swapped"} <= names
    assert all(name.endswith("_swapped") for name in names)
    assert not names & {"fsdp2_swapped", "zero2_swapped"}
    assert any(each.strategy.schedule.order == "ddp" for each in ranked[1:])
    for each in ranked[1:]:
        verify(each.strategy, tight)
        check_memory(each.strategy, tight)
        swap = each.strategy.extension(Offload)
        assert swap is not None
        assert swap.budget_bytes == swap_budget_bytes(tight)
        assert not is_ddp(each.strategy)
        assert refined(each.strategy, tight, Space(), seed=0, count=64) is each.strategy
    assert len(parents_among(tight, encode([each.strategy for each in ranked], tight))) == 0


def test_swapped_designs_stand_beside_those_that_fit_by_shards() -> None:
    """Between what ZeRO-3 takes and what DDP takes."""
    roomy = layered(None)
    sharded, whole = (peak_gb(roomy, plain_designs(roomy)[name]) for name in ("fsdp2", "ddp"))
    assert sharded < whole
    domain = layered((sharded + whole) / 2)
    found = {each.origin for each in known_designs(domain, Space(), TimelineSimulator())}
    assert {"ddp", "fsdp2", "ddp_swapped"} <= found
    for name, strategy in plain_designs(domain).items():
        fits = peak_gb(domain, strategy) <= (sharded + whole) / 2
        assert not (fits and f"{name}_swapped" in found)


def test_a_ranking_by_prediction_begins_with_what_fits_and_ends_with_ddp() -> None:
    tight = four(0.0035)
    ranked = best_by_prediction(tight, TimelineSimulator(), 64, 0, lambda event: None)
    assert ranked[-1].origin == "ddp"
    for each in ranked[:-1]:
        check_memory(each.strategy, tight)
    seconds = [each.predicted_seconds for each in ranked[:-1]]
    assert seconds == sorted(seconds)


def test_state_is_swapped_where_swapping_activations_is_not_enough() -> None:
    domain = heavy(0.041)
    check_any_fits(domain, Space())
    found = {each.origin: each.strategy for each in known_designs(domain, Space(), TIMELINE)}
    assert "all_reduce_per_variable_swapped_with_state" in found
    assert "all_reduce_per_variable_swapped" not in found
    assert not {"zero1_swapped_with_state", "ps_one_server_swapped_with_state"} & found.keys()
    for name, strategy in found.items():
        if name != "ddp":
            verify(strategy, domain)
            check_memory(strategy, domain)


def test_of_the_forms_that_fit_the_one_that_waits_least_is_proposed() -> None:
    """Outputs that are used again soon travel, or state that waits for longer."""
    domain = heavy(0.065, output_bytes=8_000_000)
    plain = DESIGNS["all_reduce_per_variable"](domain)
    (forms,) = swapped_forms([("it", plain)], domain, Space())
    waits = [predicted_slowdown(domain, strategy) for _, strategy in forms]
    assert waits == sorted(waits)
    assert {name for name, _ in forms} == {f"it{ending}" for ending in ENDINGS.values()}
    assert PROPOSER.fitting_forms(domain, [("it", plain)], Space()) == forms[:1]


def test_a_space_may_leave_swapping_out() -> None:
    tight, plain = four(0.0035), Space(swapping=False)
    named = [*plain_designs(tight).items()]
    assert PROPOSER.fitting_forms(tight, named, plain) == []
    assert swapped_forms(named, tight, plain) == [[] for _ in named]
    (_, swapped), *_ = PROPOSER.fitting_forms(tight, named, Space())
    assert lies_in(swapped, Space())
    assert not lies_in(swapped, plain)
    with pytest.raises(InvalidInput, match="none of"):
        check_any_fits(tight, plain)


def test_kernels_of_a_replay_are_never_asked_to_swap() -> None:
    """Their trials refuse it."""
    tight = four(0.0035)
    assert TuningRequest(tight).searched.swapping
    assert not TuningRequest(tight, compute="kernels").searched.swapping
    assert not TuningRequest(tight, space=Space(swapping=False)).searched.swapping


def test_forms_without_state_have_no_second_name() -> None:
    tight = four(0.0035)  # plain SGD
    forms = swapped_forms([("ddp", DESIGNS["ddp"](tight))], tight, Space())
    assert [[name for name, _ in each] for each in forms] == [["ddp_swapped"]]
    assert {plain_name(f"ddp{ending}") for ending in ENDINGS.values()} == {"ddp"}


TRIED = layered(1.0)


def tried(store: MemoryStore, name: str, strategy: Strategy, kind: ErrorKind | None) -> None:
    """kind: of its error; None where it ran."""
    proposal = Proposal(name, "search", 0, Candidate(strategy, 1.0, "analytic", name))
    error = None if kind is None else TrialError(kind, "so it is")
    seconds = 1.0 if kind is None else None
    store.propose([proposal])
    store.record(TrialResult(name, (), seconds, 0.0, error, "a table", 1.0, 1.0))


def retried(store: MemoryStore) -> list[Candidate]:
    return PROPOSER.retries(TRIED, Space(), AnalyticSimulator(), store)


@pytest.mark.parametrize("kind", [None, *get_args(ErrorKind)])
def test_another_form_is_tried_only_where_one_had_no_room(kind: ErrorKind | None) -> None:
    store = MemoryStore()
    name, plain = hand_designed(TRIED, Space())[0]
    tried(store, name, plain, "out_of_memory")
    (first,) = retried(store)
    assert first.strategy.extension(Offload) is not None
    tried(store, first.origin, first.strategy, kind)
    others = retried(store)
    assert bool(others) is (kind in ("out_of_memory", "over_budget"))
