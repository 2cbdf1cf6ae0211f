"""A tuning that begins from what another one measured, on a machine that answers from a table."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.bundle import make_bundle, save_bundle
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.extensions.offload.document import Offload
from autosync.population import Population
from autosync.search.designs.building_blocks import assemble, collective
from autosync.search.designs.design_table import with_pins
from autosync.search.designs.known_designs import all_reduce_per_variable, partitioned_all_reduce
from autosync.search.loop.earlier_document import EarlierTrial, EarlierTrials
from autosync.search.loop.earlier_trials import (
    known_from,
    read_earlier,
    since_then,
    trials_of,
    trials_of_bundle,
    usable,
)
from autosync.search.loop.outcome import TuningEvent, is_ddp, shipped_bundle
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_loop import learn, tune
from autosync.search.loop.tuning_store import MemoryStore
from autosync.search.space import Space
from autosync.simulator.analytic import AnalyticSimulator
from autosync.strategy import AllReduce, Encoding, Replica, Strategy, VariableChoice, whole
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.loop.test_tuning_loop import DOMAIN, SETTINGS, TablePool, by_simulator, run

F64 = NDArray[np.float64]


@cache
def first_tuning() -> EarlierTrials:
    return trials_of(run(TablePool(by_simulator), MemoryStore()).ranked, accumulate=1)


def again(
    earlier: EarlierTrials, seconds: Callable[[Strategy], float], settings: Settings = SETTINGS
) -> MemoryStore:
    store, simulator = MemoryStore(), AnalyticSimulator()
    pool, say = TablePool(seconds), list[TuningEvent]().append
    tune(DOMAIN, Space(), lambda: pool, store, simulator, settings, say, earlier=earlier)
    return store


def twice_as_slow(strategy: Strategy) -> float:
    return 2.0 * by_simulator(strategy)


def test_a_budget_that_holds_no_step_any_more_is_left_out() -> None:
    earlier = first_tuning()
    plain = next(trial for trial in earlier.trials if is_ddp(trial.strategy))
    swapped = [plain.strategy.carrying(Offload(budget)) for budget in (1, 10**12)]
    trials = tuple(replace(plain, strategy=each) for each in (plain.strategy, *swapped))
    kept = usable(EarlierTrials(trials), DOMAIN, Space())
    assert [trial.strategy for trial in kept.trials] == [plain.strategy, swapped[1]]


def test_seconds_of_other_batches_an_update_are_refused() -> None:
    earlier = first_tuning()
    four = replace(DOMAIN, accumulate=4)
    with pytest.raises(InvalidInput, match=r"of 1 batches, and this tuning.s have 4") as one:
        usable(earlier, four, Space())
    assert one.value.remedy.startswith("Tune with updates of 1 batches")  # a job has no option
    assert usable(replace(earlier, accumulate=4), four, Space()).accumulate == 4


def test_canaries_are_measured_first() -> None:
    earlier = first_tuning()
    store = again(earlier, twice_as_slow)
    first = [
        p.candidate.strategy for p in store.proposals() if p.round == 0 and p.phase == "search"
    ]
    assert is_ddp(first[0])
    fastest = [t.strategy.id for t in earlier.trials if not is_ddp(t.strategy)]
    assert [strategy.id for strategy in first[1:4]] == fastest[:3]
    assert first[4].id in fastest[3:]
    assert len(first) == 5


def test_nothing_is_measured_twice_in_a_search_and_designs_get_another_chance() -> None:
    settings = replace(SETTINGS, budget=14, refined_share=0.0, neighbour_share=0.0)
    store = again(first_tuning(), twice_as_slow, settings)
    searched = [p for p in store.proposals() if p.phase == "search"]
    assert len(searched) == 14
    assert len({p.candidate.strategy.id for p in searched}) == 14
    rounds = {p.round for p in searched}
    assert len(rounds) > 1
    assert "sampled" in {p.candidate.origin for p in searched if p.round > 0}
    designs = {p.candidate.origin for p in searched if p.round == 1}
    assert designs - {"sampled", "neighbour"}


BRIEF = replace(SETTINGS, budget=6)
"""Less than what was measured then: part of it is not measured again."""


def test_what_was_measured_then_counts_as_what_it_takes_now() -> None:
    earlier = first_tuning()
    store = again(earlier, twice_as_slow, BRIEF)
    now = since_then(earlier, store)
    then = {trial.strategy.id: trial.step_seconds for trial in earlier.trials}
    assert now
    for strategy, seconds in now:
        assert seconds == pytest.approx(2.0 * then[strategy.id])
    assert since_then(earlier, MemoryStore()) == []


class Noting(AnalyticSimulator):
    """A learner that notes what it is taught."""

    def __init__(self) -> None:
        self.taught: list[float] = []

    def refit(self, domain: Domain, population: Population, step_seconds: F64) -> None:
        self.taught = step_seconds.tolist()

    def predict_with_std(self, domain: Domain, population: Population) -> tuple[F64, F64]:
        return self.predict(domain, population), np.ones(len(population))


def test_a_simulator_learns_from_both() -> None:
    earlier = first_tuning()
    store = again(earlier, twice_as_slow, BRIEF)
    simulator = Noting()
    learn(DOMAIN, simulator, store, earlier)
    measured = [trial.step_seconds for trial in store.trials()]
    known = [seconds for _, seconds in since_then(earlier, store)]
    assert known
    assert simulator.taught == [*measured, *known]
    learn(DOMAIN, simulator, store)
    assert simulator.taught == measured


def test_a_bundle_knows_its_own_strategy_and_ddp(tmp_path: Path) -> None:
    outcome = run(TablePool(by_simulator), MemoryStore())
    path = tmp_path / "best.json"
    save_bundle(shipped_bundle(outcome, DOMAIN, "a table"), path)
    known = known_from(read_earlier(path), DOMAIN)
    assert [is_ddp(trial.strategy) for trial in known.trials] == [False, True]
    assert known.trials[0].step_seconds == outcome.best_seconds
    never = make_bundle(outcome.best.strategy, DOMAIN)
    with pytest.raises(InvalidInput, match="never been measured"):
        trials_of_bundle(never, DOMAIN)


def test_trials_as_a_file(tmp_path: Path) -> None:
    earlier = first_tuning()
    path = tmp_path / "trials.json"
    path.write_text(to_json(earlier))
    assert read_earlier(path) == earlier
    assert from_json(EarlierTrials, to_json(earlier)) == earlier
    with pytest.raises(InvalidInput, match="took 0"):
        replace(earlier.trials[0], step_seconds=0.0)
    for text in ("{}", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(InvalidInput, match=r"trials\.json"):
            read_earlier(path)
    with pytest.raises(InvalidInput, match=r"cannot read .* `autosync\.tune\(trials=\.\.\.\)`"):
        read_earlier(tmp_path / "none.json")


def test_what_does_not_run_here_any_more_is_left_out() -> None:
    earlier = first_tuning()
    assert usable(earlier, DOMAIN, Space()) == earlier
    collectives = Space(parameter_server=False, hierarchical=False)
    kept = usable(earlier, DOMAIN, collectives)
    assert 0 < len(kept.trials) < len(earlier.trials)
    elsewhere = domain_of(chain_graph(((3, 3),)), grid_cluster(2, 2))
    with pytest.raises(InvalidInput, match="none of the"):
        usable(earlier, elsewhere, Space())


def test_what_cuts_a_pinned_variable_otherwise_is_left_out() -> None:
    """Edits of it would read as many rows of the pin as it has shards."""
    variable = DOMAIN.graph.variables[0]
    pin = VariableChoice(variable.name, whole(variable.shape), (AllReduce(0),))
    space = Space(pins=(pin,))
    cut = partitioned_all_reduce(DOMAIN)
    kept = with_pins(all_reduce_per_variable(DOMAIN), space)
    assert len(cut.choices[0].shards) > 1
    trials = tuple(EarlierTrial(each, 1.0, "design") for each in (cut, kept))
    assert [t.strategy for t in usable(EarlierTrials(trials), DOMAIN, space).trials] == [kept]


def test_uneven_shares_are_left_out_where_the_space_has_even_ones_alone() -> None:
    even, world = all_reduce_per_variable(DOMAIN), DOMAIN.world_size
    shares = [2 / (world + 1), *[1 / (world + 1)] * (world - 1)]
    uneven = replace(even, replicas=tuple(map(Replica, range(world), shares)))
    earlier = EarlierTrials(tuple(EarlierTrial(each, 1.0, "design") for each in (even, uneven)))
    assert [t.strategy for t in usable(earlier, DOMAIN, Space()).trials] == [even]
    assert usable(earlier, DOMAIN, Space(uneven_shares=True)) == earlier


def test_lossy_messages_are_taken_over_where_the_space_has_no_others() -> None:
    packed = Encoding("bf16")
    halved = assemble(DOMAIN, collective(DOMAIN, AllReduce(0, encoding=packed)))
    earlier = EarlierTrials((EarlierTrial(halved, 1.0, "design"),))
    assert usable(earlier, DOMAIN, Space(encodings=(packed,))) == earlier
    with pytest.raises(InvalidInput, match="none of the 1 strategies"):
        usable(earlier, DOMAIN, Space())


def test_the_second_search_is_no_worse_where_nothing_has_changed() -> None:
    earlier = first_tuning()
    store = again(earlier, by_simulator)
    best = min(t.step_seconds for t in store.trials() if t.step_seconds)
    assert best <= min(trial.step_seconds for trial in earlier.trials)
