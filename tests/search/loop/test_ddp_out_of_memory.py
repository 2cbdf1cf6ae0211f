"""Tunings in which torch's DDP runs out of memory: what fits is compared with what fits."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Device
from autosync.errors import AutosyncError
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.proposals import plain_name
from autosync.population import decode
from autosync.search.loop import tuning_loop
from autosync.search.loop.earlier_document import EarlierTrial, EarlierTrials
from autosync.search.loop.outcome import (
    Outcome,
    TuningEvent,
    is_ddp,
    rank_measured,
    shipped_bundle,
)
from autosync.search.loop.tuning_loop import describe_outcome, tune
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH, MemoryStore
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.analytic import AnalyticSimulator
from autosync.strategy import Strategy
from autosync.trials.contract import TrialError
from tests.long_parameters import long_after
from tests.search.killed import Killed
from tests.search.loop.test_tuning_loop import DOMAIN, SETTINGS, Sure, TablePool, by_simulator, run
from tests.simulator.worked_examples import on_devices

FULL = TrialError("out_of_memory", "rank 0: can't allocate memory")


def without_ddp(strategy: Strategy) -> float | None:
    return None if is_ddp(strategy) else by_simulator(strategy)


def test_where_ddp_runs_out_of_memory_what_fits_is_compared_with_the_fastest_known_design() -> None:
    pool, store = TablePool(without_ddp, error=FULL), MemoryStore()
    outcome = run(pool, store)
    searched = [p for p in store.proposals() if p.phase == "search"]
    known = [
        row
        for row in rank_measured(searched, store.trials())
        if row.step_seconds is not None and row.candidate.origin not in FOUND_BY_SEARCH
    ]
    assert outcome.baseline.strategy.id == known[0].candidate.strategy.id
    assert outcome.ddp_seconds is None
    assert not outcome.keep_ddp
    assert outcome.speedup == pytest.approx(outcome.baseline_seconds / outcome.best_seconds)
    assert outcome.ranked[-1].error == f"out_of_memory: {FULL.message}"
    confirmed = {key.split("/")[2] for key in pool.ran if key.startswith("confirm/")}
    assert outcome.baseline.strategy.id in confirmed
    assert not any(is_ddp(p.candidate.strategy) for p in store.proposals() if p.phase == "confirm")
    told = describe_outcome(outcome)
    assert told.startswith("DDP ran out of memory; ")
    assert outcome.baseline.strategy.name in told
    evidence = shipped_bundle(outcome, DOMAIN, "a table").evidence
    assert evidence.ddp_step_seconds is None
    assert evidence.step_seconds == outcome.best_seconds


def test_a_known_design_that_nothing_beats_is_the_answer_where_ddp_does_not_fit() -> None:
    def equal(strategy: Strategy) -> float | None:
        return None if is_ddp(strategy) else 1.0

    outcome = run(TablePool(equal, error=FULL), MemoryStore())
    assert outcome.keeps_baseline
    assert outcome.best.origin not in {"ddp", *FOUND_BY_SEARCH}
    assert (outcome.speedup_low, outcome.speedup, outcome.speedup_high) == (1.0, 1.0, 1.0)
    assert "nothing that fits beats" in describe_outcome(outcome)


@pytest.mark.parametrize("origin", ["compiled_regions", "nccl_knobs"])
def test_what_an_extension_made_of_a_measured_strategy_is_no_known_design(origin: str) -> None:
    """It is measured before any design, and is faster than all of them."""
    made = decode(sample(DOMAIN, Space(), 0, 1, 5), 0, DOMAIN)

    def seconds(strategy: Strategy) -> float | None:
        return None if is_ddp(strategy) else 0.5 if strategy.id == made.id else 1.0

    pool, say = TablePool(seconds, error=FULL), list[TuningEvent]().append
    store, simulator = MemoryStore(), AnalyticSimulator()
    earlier = EarlierTrials((EarlierTrial(made, 0.5, origin),))
    outcome = tune(DOMAIN, Space(), lambda: pool, store, simulator, SETTINGS, say, earlier=earlier)
    assert outcome.best.strategy.id == made.id
    assert outcome.baseline.origin not in {"ddp", origin}
    assert outcome.speedup == pytest.approx(2.0)


@pytest.mark.parametrize("dies_after", long_after(1, [11, 1, 14]))
def test_a_killed_tuning_without_ddp_goes_on_where_it_stopped(dies_after: int) -> None:
    expected = run(TablePool(without_ddp, error=FULL), MemoryStore())
    store = MemoryStore()
    with pytest.raises(Killed):
        run(TablePool(without_ddp, dies_after, FULL), store)
    assert run(TablePool(without_ddp, error=FULL), store) == expected


def test_where_nothing_fits_there_is_no_answer() -> None:
    pool = TablePool(lambda strategy: None, error=FULL)
    with pytest.raises(AutosyncError, match="out_of_memory") as failed:
        run(pool, MemoryStore())
    assert "smaller batch" in failed.value.remedy
    assert not any(key.startswith("confirm/") for key in pool.ran)


ARENAS = on_devices(DOMAIN, Device("arena", 2, memory_gb=1.0))
"""Devices whose activations can be swapped, and that would hold everything, by prediction."""


def tuned_in_arenas(runs: Callable[[Strategy], bool]) -> tuple[Outcome, MemoryStore]:

    def seconds(strategy: Strategy) -> float | None:
        return 1.0 if runs(strategy) else None

    store = MemoryStore()
    settings = replace(SETTINGS, budget=24)
    pool = TablePool(seconds, error=FULL)
    simulator = AnalyticSimulator()
    outcome = tune(ARENAS, Space(), lambda: pool, store, simulator, settings, lambda event: None)
    return outcome, store


def test_what_runs_out_of_memory_against_its_prediction_is_tried_with_swapping() -> None:
    outcome, store = tuned_in_arenas(lambda strategy: strategy.extension(Offload) is not None)
    searched = [each.candidate for each in store.proposals() if each.phase == "search"]
    swapped = [each for each in searched if each.strategy.extension(Offload) is not None]
    assert "ddp_swapped" in {each.origin for each in swapped}
    assert len({each.strategy.id for each in swapped}) == len(swapped)
    first = searched.index(swapped[0])
    assert not any(each.strategy.extension(Offload) for each in searched[:first])
    assert outcome.best.strategy.extension(Offload) is not None
    # it is compared with the fastest known that ran
    assert outcome.baseline.strategy.extension(Offload) is not None
    assert not outcome.keep_ddp


def test_what_ran_is_not_tried_with_swapping() -> None:
    _, store = tuned_in_arenas(lambda strategy: True)
    assert not any(each.candidate.strategy.extension(Offload) for each in store.proposals())


def test_what_has_no_room_with_swapped_activations_comes_back_with_swapped_state() -> None:
    def runs(strategy: Strategy) -> bool:
        swap = strategy.extension(Offload)
        return swap is not None and swap.optimizer_state

    outcome, store = tuned_in_arenas(runs)
    swap = outcome.best.strategy.extension(Offload)
    assert swap is not None
    assert swap.optimizer_state
    tried = [each.candidate for each in store.proposals() if each.phase == "search"]
    assert {"ddp_swapped", "all_reduce_25mb_swapped"} & {each.origin for each in tried}
    assert any(each.origin.endswith("_swapped_with_state") for each in tried)
    assert len({each.strategy.id for each in tried}) == len(tried)


def test_one_form_that_ran_is_enough() -> None:
    def runs(strategy: Strategy) -> bool:
        return strategy.extension(Offload) is not None

    _, store = tuned_in_arenas(runs)
    origins = [each.candidate.origin for each in store.proposals() if each.phase == "search"]
    retried = [plain_name(origin) for origin in origins if "_swapped" in origin]
    assert len(set(retried)) == len(retried) > 0


def test_a_search_without_gain_still_tries_what_had_no_room_with_swapping() -> None:
    def without_room(strategy: Strategy) -> float | None:
        return None if is_ddp(strategy) else 0.9

    store, settings = MemoryStore(), replace(SETTINGS, budget=24, least_gain=0.01)
    pool = TablePool(without_room, error=FULL)
    tune(ARENAS, Space(), lambda: pool, store, Sure(), settings, lambda event: None)
    last = max((p for p in store.proposals() if p.phase == "search"), key=lambda p: p.round)
    assert last.round == 1
    assert last.candidate.strategy.extension(Offload) is not None


@pytest.mark.parametrize("on_its_devices", [False, True])
def test_ddp_that_ran_on_the_devices_themselves_fits_them(
    monkeypatch: pytest.MonkeyPatch, on_its_devices: bool
) -> None:
    """A running job's trial took the memory of training; a replay says nothing of it."""

    def seconds(strategy: Strategy) -> float:
        return 1.0 if is_ddp(strategy) else 2.0

    nothing = np.zeros(0, dtype=np.int64)
    monkeypatch.setattr(tuning_loop, "fitting_rows", lambda *given: nothing)
    outcome = tune(
        DOMAIN,
        Space(),
        lambda: TablePool(seconds),
        MemoryStore(),
        AnalyticSimulator(),
        SETTINGS,
        lambda event: None,
        on_its_devices=on_its_devices,
    )
    assert outcome.keep_ddp == on_its_devices
    assert is_ddp(outcome.best.strategy) == on_its_devices
