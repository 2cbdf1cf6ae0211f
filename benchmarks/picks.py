"""Chooses and measures the picks of a dataset: strategies that searches choose, round by round.

    python -m benchmarks.picks FOLDER [--plan FILE] [--domain NAME ...] [--launcher testbed]

Runs after `autosync collect`, on the same folder and plan, and resumes like it. In every round a
third of the picks is chosen by the timeline, a third by a transferred simulator and a third at
random, in that order. The first two choose among the same proposals as a tuning; the last chooses
among all of them. A pick's messages differ from those of all strategies that were measured or
chosen before. The first pass of a round runs before the next round is chosen.

The transferred simulator is trained on the measured strategies of the plan's `pick_sources`,
without picks and without the domain itself, and before each round it learns the domain's picks so
far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from autosync.api.cli.stop_signals import stop_on_signals
from autosync.api.engine.registry import launcher_named
from autosync.bundled_data import data_file
from autosync.cancellation import Cancelled, beside, cancelled_by
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population, decode
from autosync.search.collect.collection import (
    CollectionRun,
    StopToken,
    pass_runner,
    passes_of,
    probed_domain,
)
from autosync.search.collect.collection_log import (
    PICK_ORIGINS,
    CollectedStrategy,
    CollectionLog,
    held_alone,
    stored_domain,
)
from autosync.search.collect.collection_passes import PASSES, OccasionPasses
from autosync.search.collect.collection_plan import CollectionTarget, load_plan, select_targets
from autosync.search.loop.ranking import OPTIMISM, SHORTLIST_SIZE, materialize, rank
from autosync.search.loop.selection import distinct_rows, message_shares, select
from autosync.search.loop.settings import Settings
from autosync.search.loop.sources import COARSE_SIZE
from autosync.search.sampler.sampling import sample_at
from autosync.search.space import Space
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulator import LabelledTrials, LearnedSimulator
from autosync.simulator.learned.training import simulator_from
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.runtime_dataset import MeasuredDomain, domain_of_rows
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.trials.contract import reporting_waits
from benchmarks.output import option_parser

F64 = NDArray[np.float64]
P = ParamSpec("P")
T = TypeVar("T")

BY_TIMELINE, BY_TRANSFERRED, AT_RANDOM = PICK_ORIGINS

RANDOM_DRAWS = 16
"""Samples for each pick at random: some of them were measured before."""


@dataclass(frozen=True, slots=True)
class PickRound:
    """number: from 1. picks: of the round. proposals: drawn for it. seed: of the collection."""

    number: int
    picks: int
    proposals: int
    seed: int


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plan", type=Path, default=data_file("runtimes", "plan.yaml"))
    parser.add_argument("--domain", nargs="*", default=[])
    parser.add_argument("--launcher", default="testbed")
    given = parser.parse_args()
    stop, plan = stop_on_signals(), load_plan(given.plan)
    names = select_targets(plan, tuple(given.domain)).domains
    with held_alone(given.folder):
        run = CollectionRun(
            plan,
            given.folder,
            CollectionLog(given.folder),
            reporting_waits(launcher_named(given.launcher), print),
            print,
            stop.is_set,
        )
        collect_picks(run, names)


def collect_picks(run: CollectionRun, targets: Sequence[CollectionTarget]) -> None:
    """Choose and measure what is missing of the targets' picks. run: `domains` of its plan include
    the sources.

    Raises:
        InvalidInput: a source or a target was not collected.
    """
    try:
        for target in targets:
            if target.picks and not run.stopped():
                measure_picks(run, target)
                run.checkpoint()
    except Cancelled:
        run.checkpoint()


def measure_picks(run: CollectionRun, target: CollectionTarget) -> None:
    share = run.plan.pick_rounds * len(PICK_ORIGINS)
    if target.picks < 0 or target.picks % share:
        raise InvalidInput(
            f"{target.name}.picks {target.picks!r} is no multiple of {share}.",
            thing=f"{target.name}.picks",
            value=target.picks,
            remedy=f"In each of {run.plan.pick_rounds} rounds all choosers pick equally many.",
        )
    domain, rounds = probed_domain(run, target), range(1, run.plan.pick_rounds + 1)
    if passes_of(run, target, domain, 1).pending(run.log):
        raise _not_collected(target.name, target.name)
    chosen = run.log.picks(domain.id)
    if {one.round for one in chosen} == set(rounds) and not pick_passes(
        run, domain, chosen
    ).pending(run.log):
        return
    run.report(f"{target.name}: {target.picks} picks in {run.plan.pick_rounds} rounds")
    simulator = _cancelled_with(run, trained_elsewhere, pick_sources(run, target))
    with pass_runner(run, target, domain) as runner:
        for number in rounds:
            chosen = [one for one in run.log.picks(domain.id) if one.round == number]
            if not chosen:
                chosen = store_round(run, target, domain, simulator, number)
            runner.run_all(pick_passes(run, domain, chosen, (1,)))
            if run.stopped():
                return
        runner.run_all(pick_passes(run, domain, run.log.picks(domain.id)))


def store_round(
    run: CollectionRun,
    target: CollectionTarget,
    domain: Domain,
    simulator: LearnedSimulator,
    number: int,
) -> list[CollectedStrategy]:
    """Choose a round and store it, before any of it is measured."""
    trials = run.log.trials(domain.id, picks=True)
    if len(trials):
        known = domain_of_rows(domain, trials)
        _cancelled_with(run, simulator.refit, domain, known.population, known.label_seconds)
    before = (*passes_of(run, target, domain, 1).strategies, *run.log.picks(domain.id))
    asked = PickRound(
        number, target.picks // run.plan.pick_rounds, run.plan.proposals, run.plan.seed
    )
    earlier = [one.strategy for one in before]
    chosen = _cancelled_with(run, choose_round, domain, simulator, earlier, asked)
    if len(chosen) < asked.picks:
        run.report(f"  only {len(chosen)} of {asked.picks} picks differ from earlier strategies")
    run.log.record_round(domain.id, chosen)
    return chosen


def pick_sources(run: CollectionRun, target: CollectionTarget) -> list[MeasuredDomain]:
    """The measured strategies, without picks, of the plan's sources other than the target."""
    sources = []
    for name in run.plan.pick_sources:
        if name == target.name:
            continue
        domain = stored_domain(run.folder, name)
        trials = None if domain is None else run.log.trials(domain.id, picks=False)
        if domain is None or trials is None or not len(trials):
            raise _not_collected(target.name, name)
        sources.append(domain_of_rows(domain, trials))
    return sources


def pick_passes(
    run: CollectionRun,
    domain: Domain,
    chosen: Sequence[CollectedStrategy],
    numbers: tuple[int, ...] = PASSES,
) -> OccasionPasses:
    return OccasionPasses(domain.id, 1, tuple(chosen), run.plan.seed, numbers)


def _not_collected(target: str, source: str) -> InvalidInput:
    return InvalidInput(
        f"the picks of {target} need the strategies of {source}, which were not all measured.",
        thing="pick_sources",
        value=source,
        remedy=f"Run `autosync collect --domain {source}` first.",
    )


def _cancelled_with(
    run: CollectionRun, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Runs `work` on another thread. Raises Cancelled as soon as the run is to stop."""
    with cancelled_by(StopToken(run.stopped)):
        return beside(work, *args, **kwargs)


def trained_elsewhere(sources: Sequence[MeasuredDomain]) -> LearnedSimulator:
    """The transferred simulator, without a trial of the domain."""
    known = [
        LabelledTrials(each.domain, features_of(each.domain, each.population), each.label_seconds)
        for each in sources
    ]
    return simulator_from(known)


def choose_round(
    domain: Domain,
    transferred_simulator: LearnedSimulator,
    earlier: Sequence[Strategy],
    asked: PickRound,
) -> list[CollectedStrategy]:
    """The picks of a round. earlier: every strategy that was measured or chosen before.

    Fewer than asked for, where the proposals hold no more that differ from these.
    """
    seed, each = asked.seed + asked.number, asked.picks // len(PICK_ORIGINS)
    timeline = TimelineSimulator()
    coarse = rank(domain, Space(), timeline, asked.proposals, seed, COARSE_SIZE)
    proposals = materialize(coarse, domain, Space())
    known = digests_of_strategies(domain, earlier)

    fresh = distinct_rows(domain, proposals, known)[:SHORTLIST_SIZE]
    listed, seconds = proposals.take(fresh), coarse.seconds[fresh]
    chosen = _selected(BY_TIMELINE, domain, listed, seconds, seconds, each, asked)
    known |= digests_of_strategies(domain, [one.strategy for one in chosen])

    fresh = distinct_rows(domain, proposals, known)
    listed = proposals.take(fresh)
    seconds, std = transferred_simulator.predict_with_std(domain, listed)
    promise = seconds * np.exp(-OPTIMISM * std)
    best = np.argsort(promise, kind="stable")[:SHORTLIST_SIZE]
    chosen += _selected(
        BY_TRANSFERRED, domain, listed.take(best), seconds[best], promise[best], each, asked
    )
    known |= digests_of_strategies(domain, [one.strategy for one in chosen])

    count = min(asked.proposals, RANDOM_DRAWS * each)
    drawn = np.random.default_rng([seed]).choice(asked.proposals, count, replace=False)
    population = sample_at(domain, Space(), drawn.astype(np.uint64), seed)
    rows = distinct_rows(domain, population, known)[:each]
    guesses = timeline.predict(domain, population)
    return chosen + [
        CollectedStrategy(
            AT_RANDOM, decode(population, int(row), domain), asked.number, float(guesses[row])
        )
        for row in rows
    ]


def _selected(
    origin: str,
    domain: Domain,
    listed: Population,
    seconds: F64,
    promise: F64,
    count: int,
    asked: PickRound,
) -> list[CollectedStrategy]:
    shares = message_shares(domain, listed)
    picks = select(promise, shares, min(count, len(listed)), Settings().alpha)
    return [
        CollectedStrategy(
            origin, decode(listed, int(pick), domain), asked.number, float(seconds[pick])
        )
        for pick in picks
    ]


if __name__ == "__main__":
    main()
