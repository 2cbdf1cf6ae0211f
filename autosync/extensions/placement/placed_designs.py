"""Candidates that place modules, made of the most promising strategies that do not: by the plain
proposer, and by the policy where torch-geometric is there. Only where the space allows them.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from autosync.domain import Domain
from autosync.errors import InvalidInput, InvalidStrategy, NotSupported
from autosync.extensions.placement.greedy_placement import place_greedily
from autosync.extensions.placement.placed_strategy import with_placement
from autosync.extensions.placement.placement_judge import PlacementJudge, Stop, no_stop
from autosync.population import encode
from autosync.search.designs.design_table import check_any_fits, hand_designed, lies_in
from autosync.search.loop.outcome import DDP
from autosync.search.loop.ranking import coarse_of
from autosync.search.loop.selection import distinct_rows
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Origin, Store
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.simulator_contract import Simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Replica, Strategy
from autosync.verification import verify

PLACED_SHARE = 0.25
"""Of a round's trials, that place modules at the most: the timeline, which alone judges them, puts
them 6 % too low (docs/placement.md)."""

BASES = 2
"""Strategies that modules are placed in."""

EVALUATIONS = 256
"""Predictions that the plain proposer has for a base, and the policy for the best one; a tenth of
the proposals of a round at the most."""


def may_be_placed(strategy: Strategy) -> bool:
    """Whether modules can be placed in it: torch itself does not run it, and it neither lags, swaps
    nor places any."""
    swaps = strategy.swap is not None
    return not (strategy.run_by_torch or strategy.staleness or swaps or strategy.placement)


def with_placed(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    designs: Sequence[Candidate],
    tried: Sequence[Strategy],
    settings: Settings,
    room: int,
) -> list[Candidate]:
    """At most `room` of the designs and of what is made of them: those in their order where nothing
    is placed, else DDP first, then by prediction. tried: not proposed again."""
    bases = [each.strategy for each in designs if may_be_placed(each.strategy)]
    found = placed_candidates(domain, space, simulator, bases, settings, tried=tried)
    if not (found := found[: int(PLACED_SHARE * room)]):
        return list(designs[:room])
    joined = [*designs[: room - len(found)], *found]
    return sorted(joined, key=lambda each: (each.origin != DDP, each.predicted_seconds))


def placed_again(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    fastest: Sequence[Strategy],
    tried: Sequence[Strategy],
    settings: Settings,
    room: int,
    refused: Collection[str] = (),
) -> list[Candidate]:
    """Of a later round. fastest: measured, the fastest first; their placements are tried in others,
    too. tried: not proposed again. refused: modules that could not be placed."""
    bases = list(filter(may_be_placed, fastest))
    return placed_candidates(
        domain,
        space,
        simulator,
        bases,
        settings,
        placements=[each for each in fastest if each.placement],
        tried=tried,
        refused=refused,
    )[: int(PLACED_SHARE * room)]


def placed_candidates(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    bases: Sequence[Strategy],
    settings: Settings,
    *,
    placements: Sequence[Strategy] = (),
    tried: Sequence[Strategy] = (),
    refused: Collection[str] = (),
    stop: Stop = no_stop,
) -> list[Candidate]:
    """Those that fit the devices' memory, the fastest by prediction first, none with the messages
    of another or of one that was tried.

    bases: the most promising first; where there are none, since no strategy fits, designs that do
    not fit, and there the policy is asked, too: elsewhere it found nothing that the plain proposer
    and the sampler do not (docs/placement.md). placements: whose placements the bases also get.
    stop: ends the proposers before they have had their evaluations.
    """
    if not can_be_placed(domain, space):
        return []
    left_alone = {*refused, *(pin.variable for pin in space.pins)}
    judge = PlacementJudge(domain, coarse_of(simulator), stop)
    chosen = unlike_shares(bases or _designs(domain, space, judge))
    found: list[tuple[Origin, Strategy]] = [
        ("placed", place_greedily(judge, base, _budget(settings), left_alone=left_alone).strategy)
        for base in chosen
    ]
    found += [
        ("placed", with_placement(base, domain, other.placement))
        for base in chosen
        for other in placements[:BASES]
    ]
    learns = not bases and not left_alone and find_spec("torch_geometric") is not None
    if learns and chosen and not stop():
        learned = _learned(domain, space, simulator, chosen[0], settings, stop)
        found.append(("placed_by_policy", learned))
    return _distinct(domain, space, simulator, found, tried)


def refused_modules(store: Store) -> set[str]:
    """Modules of placements whose trials were refused, without those that another trial placed:
    they mix samples, say, which a graph may not tell."""
    kinds = {t.key: t.error.kind if t.error else None for t in store.trials()}
    refused: set[str] = set()
    sound: set[str] = set()
    for proposal in store.proposals():
        modules = {placed.module for placed in proposal.candidate.strategy.placement}
        if proposal.key in kinds and kinds[proposal.key] in (None, "refused"):
            (sound if kinds[proposal.key] is None else refused).update(modules)
    return refused - sound


def check_fits(domain: Domain, space: Space, stop: Stop = no_stop) -> None:
    """
    Raises:
        InvalidInput: as `check_any_fits`, where no placement fits either, of those that were looked
            at before `stop`.
    """
    try:
        check_any_fits(domain, space)
    except InvalidInput:
        if not placed_candidates(domain, space, TimelineSimulator(), (), Settings(), stop=stop):
            raise


def can_be_placed(domain: Domain, space: Space) -> bool:
    """Deals run over gloo; ranks of a placed module all-reduce."""
    return space.placement and space.all_reduce and domain.cluster.backend == "gloo"


def unlike_shares(bases: Sequence[Strategy]) -> list[Strategy]:
    """At most `BASES`: the best of each division of the batch, then the best of the rest."""
    first: dict[tuple[Replica, ...], Strategy] = {}
    for base in bases:
        first.setdefault(base.replicas, base)
    chosen = list(first.values())
    return (chosen + [base for base in bases if base not in chosen])[:BASES]


def _designs(domain: Domain, space: Space, judge: PlacementJudge) -> list[Strategy]:
    """The fastest by prediction first, whether they fit or not."""
    made = [each for _, each in hand_designed(domain, space) if may_be_placed(each)]
    judged = judge.judge(made) if made else []
    return [each.strategy for each in sorted(judged, key=lambda each: each.step_seconds)]


def _budget(settings: Settings) -> int:
    """Predictions of one proposer for one base."""
    return max(1, min(EVALUATIONS, settings.proposals // 10))


def _learned(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    base: Strategy,
    settings: Settings,
    stop: Stop,
) -> Strategy:
    """The policy's best, itself where nothing is better."""
    from autosync.extensions.placement.policy_training import PolicySettings, learned_placement

    of_policy = PolicySettings(
        seed=settings.seed, uneven_shares=space.uneven_shares, servers=space.parameter_server
    )
    found = learned_placement(
        domain, coarse_of(simulator), base, _budget(settings), settings=of_policy, stop=stop
    )
    return found.strategy


def _distinct(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    found: Sequence[tuple[Origin, Strategy]],
    tried: Sequence[Strategy],
) -> list[Candidate]:
    sound = [(origin, each) for origin, each in found if _is_sound(each, domain, space)]
    if not sound:
        return []
    population = encode([each for _, each in sound], domain)
    scores = simulator.predict(domain, population)
    fitting = set(fitting_rows(domain, population).tolist())
    rows = distinct_rows(domain, population, digests_of_strategies(domain, tried))
    candidates = [
        Candidate(
            replace(sound[row][1], name=""), float(scores[row]), simulator.name, sound[row][0]
        )
        for row in rows.tolist()
        if row in fitting and np.isfinite(scores[row])
    ]
    return sorted(candidates, key=lambda each: each.predicted_seconds)


def _is_sound(strategy: Strategy, domain: Domain, space: Space) -> bool:
    """Whether it places anything, runs and lies in the space."""
    try:
        lossy = len(space.encodings) > 1
        verify(strategy, domain, allow_lossy=lossy, allow_inexact=space.may_lag)
    except (InvalidStrategy, NotSupported):
        return False
    return bool(strategy.placement) and lies_in(strategy, space)
