"""Placements as proposals of the tuning loop: only where they are allowed, and no more than their
share of a round."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.extensions.placement import policy
from autosync.extensions.placement.document import modules_of
from autosync.extensions.placement.proposals import (
    BASES,
    PROPOSER,
    EvaluatedPlacement,
    PlacementEvaluator,
    can_be_placed,
    may_be_placed,
    refused_modules,
    unlike_shares,
)
from autosync.extensions.staleness.document import Staleness
from autosync.population import encode
from autosync.search.designs.design_table import check_any_fits
from autosync.search.designs.known_designs import all_reduce_5mb, ddp, dear
from autosync.search.extension_proposals import ProposalRequest
from autosync.search.loop.proposing import EXTENDED_SHARE, ROUND_TRIALS
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_loop import tune
from autosync.search.loop.tuning_store import Candidate, MemoryStore
from autosync.search.space import Space
from autosync.simulator.fitting.iteration_costs import FEWEST_TRIALS, recalibrated
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Replica, Strategy, VariableChoice
from autosync.trials.contract import TrialError
from tests.placed_models import heavy_layers
from tests.search.loop.test_tuning_loop import TablePool

SLOW = heavy_layers(gbps=0.05)
"""Gradients of four megabytes travel for seconds, samples of some kilobytes do not."""

SETTINGS = Settings(budget=24, proposals=128, repeats=2)
ALLOWED = Space(placement=True)


def predicted(domain: Domain, strategy: Strategy) -> float:
    return float(TimelineSimulator().predict(domain, encode([strategy], domain))[0])


def searched(domain: Domain, space: Space) -> tuple[MemoryStore, Strategy]:
    store, pool = MemoryStore(), TablePool(lambda strategy: predicted(domain, strategy))
    outcome = tune(
        domain, space, lambda: pool, store, TimelineSimulator(), SETTINGS, lambda event: None
    )
    return store, outcome.best.strategy


def rounds_of(store: MemoryStore) -> list[list[Strategy]]:
    found: dict[int, list[Strategy]] = {}
    for proposal in store.proposals():
        if proposal.phase == "search":
            found.setdefault(proposal.round, []).append(proposal.candidate.strategy)
    return [found[number] for number in sorted(found)]


def test_nothing_is_placed_unless_it_is_allowed() -> None:
    store, best = searched(SLOW, Space())
    assert not modules_of(best)
    assert not any(modules_of(each) for of_round in rounds_of(store) for each in of_round)


def test_slow_links_are_answered_by_a_placement() -> None:
    store, best = searched(SLOW, ALLOWED)
    assert modules_of(best)
    rounds = rounds_of(store)
    assert len([each for of_round in rounds for each in of_round]) == SETTINGS.budget
    for number, of_round in enumerate(rounds):
        room = SETTINGS.budget // 2 if number == 0 else ROUND_TRIALS
        assert sum(bool(modules_of(each)) for each in of_round) <= EXTENDED_SHARE * room
    placed = [each for of_round in rounds for each in of_round if modules_of(each)]
    assert len(digests_of_strategies(SLOW, placed)) == len(placed)
    origins = {p.candidate.origin for p in store.proposals() if modules_of(p.candidate.strategy)}
    assert origins == {"placed"}


def proposed(
    bases: Sequence[Strategy], space: Space = ALLOWED, tried: Sequence[Strategy] = ()
) -> list[Candidate]:
    request = ProposalRequest(SLOW, space, TimelineSimulator(), bases, SETTINGS, tried=tried)
    return PROPOSER.candidates(request)


def test_a_later_round_tries_measured_placements_in_others() -> None:
    first = proposed([all_reduce_5mb(SLOW)])
    fastest = [first[0].strategy, dear(SLOW), all_reduce_5mb(SLOW)]
    again = proposed(fastest, tried=fastest)
    assert again
    tried = digests_of_strategies(SLOW, fastest)
    assert not tried & digests_of_strategies(SLOW, [each.strategy for each in again])


@pytest.mark.parametrize("fits", [True, False])
def test_the_policy_proposes_where_nothing_fits(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the greedy proposer."""
    asked: list[Strategy] = []

    def learned(
        evaluator: PlacementEvaluator, base: Strategy, budget: int, settings: object
    ) -> EvaluatedPlacement:
        asked.append(base)
        return evaluator.evaluate([base])[0]

    monkeypatch.setattr(policy, "learned_placement", learned)
    bases = [all_reduce_5mb(SLOW)] if fits else []
    found = proposed(bases)
    seconds = [each.predicted_seconds for each in found]
    assert seconds == sorted(seconds)
    assert all(modules_of(each.strategy) for each in found)
    assert found or not fits
    assert bool(asked) == (not fits)


def test_nothing_is_placed_on_backends_and_spaces_that_cannot() -> None:
    nccl = replace(SLOW, cluster=replace(SLOW.cluster, backend="nccl"))
    assert can_be_placed(SLOW, ALLOWED)
    assert not can_be_placed(nccl, ALLOWED)
    assert not can_be_placed(SLOW, replace(ALLOWED, all_reduce=False))
    assert not can_be_placed(SLOW, Space())
    bases = [all_reduce_5mb(SLOW)]
    assert not proposed(bases, Space())
    assert not may_be_placed(ddp(SLOW))
    assert not may_be_placed(all_reduce_5mb(SLOW).carrying(Staleness(1)))
    assert may_be_placed(all_reduce_5mb(SLOW))


def test_pinned_variables_stay_where_they_are() -> None:
    kept = all_reduce_5mb(SLOW).choices[1]
    pin = VariableChoice(kept.variable, kept.partition, kept.shards)
    found = proposed([all_reduce_5mb(SLOW)], replace(ALLOWED, pins=(pin,)))
    assert found
    for each in found:
        assert not any(placed.holds(kept.variable) for placed in modules_of(each.strategy))


def test_modules_that_a_trial_refused_are_not_placed_again() -> None:
    """The other layers are, by the same proposer."""

    def seconds(strategy: Strategy) -> float | None:
        refused = any(placed.module == "layer0" for placed in modules_of(strategy))
        return None if refused else predicted(SLOW, strategy)

    store = MemoryStore()
    pool = TablePool(seconds, error=TrialError("refused", "it mixes samples"))
    outcome = tune(
        SLOW, ALLOWED, lambda: pool, store, TimelineSimulator(), SETTINGS, lambda event: None
    )
    first, *later = rounds_of(store)
    assert "layer0" in modules_in(first)
    assert refused_modules(store) >= {"layer0"}
    placed = [name for of_round in later for name in modules_in(of_round)]
    assert not refused_modules(store) & set(placed)
    assert all(placed.module != "layer0" for placed in modules_of(outcome.best.strategy))


def modules_in(strategies: list[Strategy]) -> list[str]:
    return [placed.module for each in strategies for placed in modules_of(each)]


def test_both_divisions_of_the_batch_get_a_base() -> None:
    even = all_reduce_5mb(SLOW)
    fair = replace(even, replicas=(Replica(0, 0.75), Replica(1, 0.25)))
    assert unlike_shares([even, dear(SLOW), fair]) == [even, fair]
    assert unlike_shares([even, dear(SLOW), dear(SLOW)])[:BASES] == [even, dear(SLOW)]
    assert unlike_shares([]) == []


def test_a_model_that_fits_only_when_placed_can_be_tuned() -> None:
    """Adam keeps twice the bytes of values beside them: 4 MB of values want 16 a replica, unless
    the optimizer's state is divided."""
    whole = Space(parameter_server=False, reduce_scatter=False, sharded_parameters=False)
    small = heavy_layers(gbps=0.05, memory_gb=0.015)
    with pytest.raises(InvalidInput, match="none of"):
        check_any_fits(small, whole)
    check_any_fits(small, replace(whole, placement=True))
    with pytest.raises(InvalidInput, match="none of"):
        check_any_fits(heavy_layers(gbps=0.05, memory_gb=0.001), replace(whole, placement=True))


def test_trials_of_placements_do_not_move_the_costs_of_the_timeline() -> None:
    base = all_reduce_5mb(SLOW)
    found = proposed([base])
    tried = encode([found[0].strategy] * FEWEST_TRIALS, SLOW)
    seconds = np.full(len(tried), 3 * found[0].predicted_seconds)
    assert recalibrated(SLOW, tried, seconds) is SLOW
