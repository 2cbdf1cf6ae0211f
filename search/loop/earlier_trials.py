"""Uses the measurements of an earlier tuning in a new one.

Conditions may have changed since. So some of its strategies are measured
first (canaries), and their change scales the seconds of all others.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from autosync.bundle import Bundle, read_bundle
from autosync.documents import from_data
from autosync.domain import Domain
from autosync.errors import InvalidInput, InvalidStrategy, NotSupported
from autosync.population import encode
from autosync.search.designs import known_designs
from autosync.search.designs.design_table import keeps_pins, lies_in
from autosync.search.loop.earlier_document import EarlierTrial, EarlierTrials
from autosync.search.loop.outcome import DDP, MeasuredRow, is_ddp
from autosync.search.loop.predicted_candidates import predicted_candidates
from autosync.search.loop.selection import distinct_rows
from autosync.search.loop.tuning_store import Candidate, Store
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import check_memory
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.verification import check_runnable, verify

FASTEST = 3
"""Canaries beside DDP and a middling strategy: the answer is likely near the old one."""


def trials_of(ranked: Sequence[MeasuredRow], accumulate: int) -> EarlierTrials:
    """Of a ranked table, without its failures. accumulate: batches of an update."""
    return EarlierTrials(
        tuple(
            EarlierTrial(row.candidate.strategy, row.step_seconds, row.candidate.origin)
            for row in ranked
            if row.step_seconds is not None
        ),
        accumulate,
    )


def trials_of_bundle(shipped: Bundle, domain: Domain) -> EarlierTrials:
    """The measurements of a bundle's strategy and of DDP, from its evidence.

    Raises:
        InvalidInput: nobody has measured it.
    """
    evidence = shipped.evidence
    if evidence.step_seconds is None:
        raise InvalidInput(
            "the bundle's strategy has never been measured, so nothing is known to begin from.",
            thing="bundle.evidence.step_seconds",
            value=None,
            remedy="Give the bundle of a tuning, or tune without it.",
        )
    found = [EarlierTrial(shipped.strategy, evidence.step_seconds, "bundle")]
    if evidence.ddp_step_seconds is not None and not is_ddp(shipped.strategy):
        found.append(EarlierTrial(known_designs.ddp(domain), evidence.ddp_step_seconds, DDP))
    return EarlierTrials(tuple(found), evidence.accumulate)


def read_earlier(path: str | Path) -> Bundle | EarlierTrials:
    """A bundle, or a file of trials as `autosync.tune(trials=...)` and `autosync export --trials`
    write it.

    Raises:
        InvalidInput: it is neither, or cannot be read.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"cannot read {str(path)!r}, a bundle or a file of trials: {error.strerror}.",
            thing="earlier trials",
            value=str(path),
            remedy="Write one with `autosync export --trials`, or in a job with "
            "`autosync.tune(trials=...)`, or give a bundle.",
        ) from None
    with suppress(ValueError, RecursionError):  # which `read_bundle` words
        if isinstance(data := json.loads(text), dict) and "trials" in data:
            return from_data(EarlierTrials, data, source=str(path))
    return read_bundle(text, source=str(path))


def known_from(given: Bundle | EarlierTrials, domain: Domain) -> EarlierTrials:
    """What is known from it on a domain. Raises as `trials_of_bundle`."""
    return given if isinstance(given, EarlierTrials) else trials_of_bundle(given, domain)


def usable(earlier: EarlierTrials, domain: Domain, space: Space) -> EarlierTrials:
    """Those that run on the domain, lie in the space and keep its pins; DDP always does.

    Raises:
        InvalidInput: none of them does; they were measured with another number of batches an
            update; or the space is one that is measured anew.
    """
    if earlier.accumulate != domain.accumulate:
        raise InvalidInput(
            f"they are seconds of updates of {earlier.accumulate} batches, and this tuning's have "
            f"{domain.accumulate}.",
            thing="earlier trials",
            value=earlier.accumulate,
            remedy=f"Tune with updates of {earlier.accumulate} batches (accumulate), or without "
            "them.",
        )
    if space.only == "buckets":
        raise InvalidInput(
            f"the space {space.only!r} is measured anew: nothing of another tuning is taken over.",
            thing="earlier trials",
            value=space.only,
            remedy="Tune without them, or leave the space out.",
        )
    kept = tuple(t for t in earlier.trials if _is_usable(t.strategy, domain, space))
    if not kept:
        raise InvalidInput(
            f"none of the {len(earlier.trials)} strategies measured before runs on this domain "
            "and lies in the space.",
            thing="earlier trials",
            value=len(earlier.trials),
            remedy="Give those of the same model on as many ranks, allow in the space what they "
            "do, or tune without them.",
        )
    return EarlierTrials(kept, earlier.accumulate)


def _is_usable(strategy: Strategy, domain: Domain, space: Space) -> bool:
    try:
        verify(strategy, domain, allow_lossy=space.may_lose, allow_inexact=space.may_lag)
        check_runnable(strategy.choices, domain.world_size)
        if strategy.extensions:
            check_memory(
                strategy, domain
            )  # what an extension's budget does not hold has no schedule
    except (InvalidStrategy, NotSupported):
        return False
    return is_ddp(strategy) or (lies_in(strategy, space) and keeps_pins(strategy, space))


def canaries(
    domain: Domain, simulator: Simulator, earlier: EarlierTrials, most: int
) -> list[Candidate]:
    """At most this many strategies to measure first: DDP, the fastest, and one from the middle of
    the rest."""
    by_seconds = sorted(earlier.trials, key=lambda trial: trial.step_seconds)
    others = [trial for trial in by_seconds if not is_ddp(trial.strategy)]
    fastest, rest = others[:FASTEST], others[FASTEST:]
    chosen = [*fastest, *rest[len(rest) // 2 :][:1]]
    named = [(DDP, replace(known_designs.ddp(domain), name=DDP))]
    named += [(trial.origin, trial.strategy) for trial in chosen]
    return predicted_candidates(domain, simulator, named[:most])


def designs_again(
    domain: Domain,
    simulator: Simulator,
    earlier: EarlierTrials,
    designs: Sequence[Candidate],
    tried: Sequence[Strategy],
) -> list[Candidate]:
    """Hand-designed strategies and those measured before, without those tried again already, the
    most promising first: what was slow then may be fast now."""
    named = [(trial.origin, trial.strategy) for trial in earlier.trials]
    candidates = [*designs, *predicted_candidates(domain, simulator, named)]
    candidates.sort(key=lambda each: each.predicted_seconds)
    population = encode([each.strategy for each in candidates], domain)
    return [
        candidates[row]
        for row in distinct_rows(domain, population, digests_of_strategies(domain, tried))
    ]


def since_then(earlier: EarlierTrials, store: Store) -> list[tuple[Strategy, float]]:
    """Strategies that have not been measured again, with their earlier seconds times the median
    ratio of new to earlier seconds of those that have; none before any has been measured."""
    seconds = {trial.key: trial.step_seconds for trial in store.trials()}
    now: dict[str, float] = {}
    for proposal in store.proposals():
        if (measured := seconds.get(proposal.key)) is not None:
            now[proposal.candidate.strategy.id] = measured
    changes = [
        now[trial.strategy.id] / trial.step_seconds
        for trial in earlier.trials
        if trial.strategy.id in now
    ]
    if not changes:
        return []
    change = float(np.median(changes))
    return [
        (trial.strategy, change * trial.step_seconds)
        for trial in earlier.trials
        if trial.strategy.id not in now
    ]
