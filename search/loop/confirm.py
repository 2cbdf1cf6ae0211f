"""The confirmation: finalists against DDP in interleaved repeats, and what follows from them."""

from collections.abc import Sequence

from autosync.errors import AutosyncError
from autosync.search.loop.outcome import Outcome, is_ddp, paired_speedup, rank_measured, strategy_id
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Proposal, Store
from autosync.trials.contract import TrialResult

FINALISTS = 3
"""Strategies that run against DDP in the interleaved repeats."""
KEEP_DDP_BELOW = 1.01
"""A winner must beat DDP by more than 1 %, about the repeatability of a quiet trial (measured on
the testbed: 1 % median), in the median and at least break even in nine repeats of ten."""


def confirmation(store: Store, settings: Settings) -> list[Proposal]:
    """The finalists and DDP in interleaved repeats: the winner is not the luckiest trial."""
    if any(proposal.phase == "confirm" for proposal in store.proposals()):
        return []  # begun before a restart: the finalists stand
    rows = rank_measured(store.proposals(), store.trials())
    measured = [row.candidate for row in rows if row.step_seconds is not None]
    ddp = [candidate for candidate in measured if is_ddp(candidate.strategy)]
    others = [candidate for candidate in measured if not is_ddp(candidate.strategy)]
    finalists = ddp + others[:FINALISTS]
    return [
        Proposal(f"confirm/{repeat}/{candidate.strategy.id}", "confirm", repeat, candidate)
        for repeat in range(settings.repeats)
        for candidate in (finalists if repeat % 2 == 0 else reversed(finalists))
    ]


def conclude(store: Store) -> Outcome:
    """The answer from what the store holds; from the search alone when confirmation is missing."""
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
    best = max(pairs, key=lambda key: pairs[key][1], default=None)
    keep = best is None or pairs[best][1] < KEEP_DDP_BELOW or pairs[best][0] < 1.0
    winner = ddp if keep else next(r for r in ranked if r.candidate.strategy.id == best)
    low, median, high = (1.0, 1.0, 1.0) if keep or best is None else pairs[best]
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
