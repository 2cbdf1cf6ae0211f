"""The confirmation: finalists against DDP in interleaved repeats, and what follows from them."""

from collections.abc import Sequence

import numpy as np

from autosync.errors import AutosyncError
from autosync.search.loop.outcome import (
    MeasuredRow,
    Outcome,
    is_ddp,
    paired_speedup,
    rank_measured,
    strategy_id,
)
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Proposal, Store
from autosync.trials.contract import TrialResult

FINALISTS = 3
"""Strategies that run against DDP in the interleaved repeats."""
KEEP_DDP_BELOW = 1.01
"""A winner must beat DDP by more than 1 %, about the repeatability of a quiet trial (measured on
the testbed: 1 % median), in the median and at least break even in nine repeats of ten."""


RACE_FROM = 4
"""Repeats of all finalists. From then on those that were slower than the leader in every repeat are
left out: of two that are equal, one in eight is, and nothing is lost."""


def confirmation(store: Store, settings: Settings) -> list[Proposal]:
    """The next interleaved repeats of the finalists and DDP: the winner is not the luckiest trial.
    None where it is settled.

    Trials are at most `settings.repeats` of each finalist and of DDP. Those that the race saves go
    to more repeats, where several finalists are still in it.
    """
    begun = [proposal for proposal in store.proposals() if proposal.phase == "confirm"]
    if not begun:
        return _repeats(_finalists(store), range(min(RACE_FROM, settings.repeats)))
    first = [proposal.candidate for proposal in begun if proposal.round == 0]
    done = 1 + max(proposal.round for proposal in begun)
    latest = {proposal.candidate.strategy.id for proposal in begun if proposal.round == done - 1}
    racing = _racing(store, [each for each in first if each.strategy.id in latest])
    others = sum(not is_ddp(candidate.strategy) for candidate in racing)
    left = settings.repeats * len(first) - len(begun)
    if done < settings.repeats or (others > 1 and left >= len(racing)):
        return _repeats(racing, range(done, done + 1))
    return []


def _finalists(store: Store) -> list[Candidate]:
    """DDP, then the fastest."""
    rows = rank_measured(store.proposals(), store.trials())
    measured = [row.candidate for row in rows if row.step_seconds is not None]
    ddp = [candidate for candidate in measured if is_ddp(candidate.strategy)]
    return ddp + [each for each in measured if not is_ddp(each.strategy)][:FINALISTS]


def _repeats(candidates: Sequence[Candidate], repeats: range) -> list[Proposal]:
    return [
        Proposal(f"confirm/{repeat}/{candidate.strategy.id}", "confirm", repeat, candidate)
        for repeat in repeats
        for candidate in (candidates if repeat % 2 == 0 else reversed(candidates))
    ]


def _racing(store: Store, finalists: Sequence[Candidate]) -> list[Candidate]:
    """Of the finalists of the last repeat: DDP, and those that the leader (the least median) did
    not beat in every repeat; one whose trials all failed is out."""
    seconds = repeated_seconds(store.proposals(), store.trials())
    medians = {
        each.strategy.id: float(np.median(list(seconds[each.strategy.id].values())))
        for each in finalists
        if each.strategy.id in seconds and not is_ddp(each.strategy)
    }
    leader = min(medians, key=lambda key: medians[key], default=None)

    def races(candidate: Candidate) -> bool:
        own = candidate.strategy.id
        if is_ddp(candidate.strategy) or own == leader:
            return True
        if own not in medians or leader is None:
            return False
        pairs = list(zip(*_common(seconds[own], seconds[leader]), strict=True))
        return len(pairs) < RACE_FROM or any(mine < best for mine, best in pairs)

    return [candidate for candidate in finalists if races(candidate)]


def conclude(store: Store, ddp_fits: bool = True) -> Outcome:
    """The answer from what the store holds; from the search alone when confirmation is missing.

    ddp_fits: the devices' memory; where it does not, the fastest other one is the answer, whatever
        DDP took where it was measured.
    """
    proposals, trials = store.proposals(), store.trials()
    ranked = rank_measured(proposals, trials)
    ddp = next((row for row in ranked if is_ddp(row.candidate.strategy)), None)
    if ddp is None or ddp.step_seconds is None:
        why = ddp.error if ddp else "it was not tried before the tuning stopped"
        raise AutosyncError(
            f"torch's DDP could not be measured, so nothing can be compared: {why}.",
            thing="ddp",
            value=why,
            remedy="Look at the trial's stderr; check that the workers can start.",
        )
    seconds = repeated_seconds(proposals, trials)
    pairs = {
        row.candidate.strategy.id: paired_speedup(
            *_common(seconds[ddp.candidate.strategy.id], seconds[row.candidate.strategy.id])
        )
        for row in ranked
        if row.confirmed and ddp.confirmed and row is not ddp
    }
    most = max((len(seconds[key]) for key in pairs), default=0)
    last = [key for key in pairs if len(seconds[key]) >= most - 1]  # a stop may split a repeat
    best = max(last, key=lambda key: pairs[key][1], default=None)
    keep = best is None or pairs[best][1] < KEEP_DDP_BELOW or pairs[best][0] < 1.0
    if keep and not ddp_fits and (other := _fastest_other(ranked)) is not None:
        keep, best = False, best or other
    winner = ddp if keep else next(r for r in ranked if r.candidate.strategy.id == best)
    low, median, high = pairs.get(best or "", (1.0, 1.0, 1.0)) if not keep else (1.0, 1.0, 1.0)
    return Outcome(
        best=winner.candidate,
        best_seconds=winner.step_seconds or 0.0,
        ddp_seconds=ddp.step_seconds,
        speedup=median,
        speedup_low=low,
        speedup_high=high,
        repeats=len(seconds.get(ddp.candidate.strategy.id, {})),
        keep_ddp=keep,
        ranked=ranked,
        cancelled=not pairs,
    )


def _fastest_other(ranked: Sequence[MeasuredRow]) -> str | None:
    """The id of the fastest measured strategy that is not DDP."""
    for row in ranked:
        if row.step_seconds is not None and not is_ddp(row.candidate.strategy):
            return row.candidate.strategy.id
    return None


def repeated_seconds(
    proposals: Sequence[Proposal], trials: Sequence[TrialResult]
) -> dict[str, dict[int, float]]:
    """For each confirmed strategy, its seconds by repeat."""
    by_key = {trial.key: trial.step_seconds for trial in trials}
    found: dict[str, dict[int, float]] = {}
    for proposal in proposals:
        seconds = by_key.get(proposal.key)
        if proposal.phase == "confirm" and seconds is not None:
            found.setdefault(strategy_id(proposal), {})[proposal.round] = seconds
    return found


def _common(first: dict[int, float], second: dict[int, float]) -> tuple[list[float], list[float]]:
    both = sorted(first.keys() & second.keys())
    return [first[repeat] for repeat in both], [second[repeat] for repeat in both]
