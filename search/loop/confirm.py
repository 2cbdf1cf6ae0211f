"""The confirmation: finalists against the baseline (DDP, if it fits) in interleaved repeats, and
the answer."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from autosync.errors import AutosyncError
from autosync.search.loop.outcome import (
    MeasuredRow,
    Outcome,
    choosing_half,
    is_ddp,
    paired_speedup,
    rank_measured,
    reporting_half,
    strategy_id,
)
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH, Candidate, Proposal, Store
from autosync.trials.contract import LACKS_MEMORY, ErrorKind, TrialError, TrialResult

FINALISTS = 3
"""Strategies that run against the baseline in the interleaved repeats."""
KEEP_DDP_BELOW = 1.01
"""A winner must beat DDP by more than 1 %, about the repeatability of a quiet trial (measured on
the testbed: 1 % median), in the median."""
SLOWER_REPEATS = 0.1
"""And it may be slower in at most one repeat of ten, however slow that one was."""
FAILING = 3
"""Trials in a row that failed for another reason than memory, after which DDP runs once more.
Each time that it does run, three more are needed: then the strategies fail, not the hosts."""

RACE_FROM = 4
"""Repeats of all finalists. From then on those that were slower than the leader in every repeat are
left out. In one of eight cases that drops one of two equal strategies, which costs nothing."""


def confirmation(store: Store, settings: Settings) -> list[Proposal]:
    """The next interleaved repeats of finalists and baseline, so that luck does not choose the
    winner. None once the confirmation is complete.

    The first half of `settings.repeats` chooses the winner; in the other half, which reports, it
    runs against the baseline alone.
    """
    choosing = max(1, settings.repeats // 2)
    begun = _begun(store)
    if not begun:
        return _repeats(_finalists(store), range(min(RACE_FROM, choosing)))
    first = [proposal.candidate for proposal in begun if proposal.round == 0]
    done = 1 + max(proposal.round for proposal in begun)
    if done >= settings.repeats:
        return []
    latest = {proposal.candidate.strategy.id for proposal in begun if proposal.round == done - 1}
    finalists = [each for each in first if each.strategy.id in latest]
    return _repeats(_racing(store, finalists, first[0], done >= choosing), range(done, done + 1))


def most_confirming_trials(finalists: int, repeats: int) -> int:
    """Of `finalists` strategies, the baseline among them: all run in the half that chooses, two in
    the other one."""
    choosing = max(1, repeats // 2)
    return finalists * choosing + min(2, finalists) * (repeats - choosing)


def _begun(store: Store) -> list[Proposal]:
    """The confirmation so far; the baseline is the first of it."""
    return [proposal for proposal in store.proposals() if proposal.phase == "confirm"]


def _finalists(store: Store) -> list[Candidate]:
    """The baseline, then the fastest; none where there is nothing to compare with."""
    ranked = rank_measured(store.proposals(), store.trials())
    base = _searched_baseline(ranked)
    if base is None:
        return []
    measured = [row.candidate for row in ranked if row.step_seconds is not None]
    others = [each for each in measured if each is not base.candidate]
    return [base.candidate, *others[:FINALISTS]]


def _searched_baseline(ranked: Sequence[MeasuredRow]) -> MeasuredRow | None:
    """DDP; where it ran out of memory, the fastest known design that did not; else the fastest
    strategy. None where nothing was measured, or DDP failed otherwise.

    ranked: of the search, the fastest first.
    """
    ddp = next((row for row in ranked if is_ddp(row.candidate.strategy)), None)
    if ddp is None or ddp.step_seconds is not None:
        return ddp
    if ddp.error_kind != "out_of_memory":
        return None
    measured = [row for row in ranked if row.step_seconds is not None]
    known = (row for row in measured if row.candidate.origin not in FOUND_BY_SEARCH)
    return next(known, measured[0] if measured else None)


def _repeats(candidates: Sequence[Candidate], repeats: range) -> list[Proposal]:
    return [
        Proposal(f"confirm/{repeat}/{candidate.strategy.id}", "confirm", repeat, candidate)
        for repeat in repeats
        for candidate in (candidates if repeat % 2 == 0 else reversed(candidates))
    ]


def _racing(
    store: Store, finalists: Sequence[Candidate], baseline: Candidate, is_chosen: bool
) -> list[Candidate]:
    """Of the finalists of the last repeat: the baseline, the leader (the least median) and, until
    the winner is chosen, those that the leader did not beat in every repeat; one whose trials all
    failed is out."""
    seconds = repeated_seconds(store.proposals(), store.trials())
    medians = {
        each.strategy.id: float(np.median(list(seconds[each.strategy.id].values())))
        for each in finalists
        if each.strategy.id in seconds and each is not baseline
    }
    leader = min(medians, key=lambda key: medians[key], default=None)

    def races(candidate: Candidate) -> bool:
        own = candidate.strategy.id
        if candidate is baseline or own == leader:
            return True
        if is_chosen or own not in medians or leader is None:
            return False
        pairs = list(zip(*_common(seconds[own], seconds[leader]), strict=True))
        return len(pairs) < RACE_FROM or any(mine < best for mine, best in pairs)

    return [candidate for candidate in finalists if races(candidate)]


def conclude(store: Store, ddp_fits: bool = True) -> Outcome:
    """The answer from what the store holds; from the search alone when confirmation is missing.

    The first half of the repeats chooses the winner; the other half, which had no part in that,
    tells its seconds and its speed-up, so that no luck that made it win is reported. A single
    repeat does both.

    ddp_fits: the devices' memory; where it does not, the fastest other one is the answer, whatever
        DDP took where it was measured.

    Raises:
        AutosyncError: DDP was not measured for another reason than memory, or nothing was.
    """
    proposals, trials = store.proposals(), store.trials()
    ranked = rank_measured(proposals, trials)
    base = _baseline(store, ranked)
    base_id = base.candidate.strategy.id
    seconds = repeated_seconds(proposals, trials)
    repeated = {
        row.candidate.strategy.id: both
        for row in ranked
        if row.confirmed and base.confirmed and row is not base
        if (both := _common(seconds[base_id], seconds[row.candidate.strategy.id]))[0]
    }
    choosing = {key: paired_speedup(*map(choosing_half, both))[1] for key, both in repeated.items()}
    pairs = {key: paired_speedup(*map(reporting_half, both)) for key, both in repeated.items()}
    most = max((len(seconds[key]) for key in pairs), default=0)
    last = [key for key in pairs if len(seconds[key]) >= most - 1]  # a stop may split a repeat
    best = max(last, key=lambda key: choosing[key], default=None)
    keep = (
        best is None
        or pairs[best][1] < KEEP_DDP_BELOW
        or _slower_share(*repeated[best]) > SLOWER_REPEATS
    )
    against_ddp = is_ddp(base.candidate.strategy)
    if keep and against_ddp and not ddp_fits and (other := _fastest_other(ranked)) is not None:
        keep, best = False, best or other
    winner = base if keep else next(r for r in ranked if r.candidate.strategy.id == best)
    low, median, high = pairs.get(best or "", (1.0, 1.0, 1.0)) if not keep else (1.0, 1.0, 1.0)
    return Outcome(
        best=winner.candidate,
        best_seconds=winner.step_seconds or 0.0,
        baseline=base.candidate,
        baseline_seconds=base.step_seconds or 0.0,
        speedup=median,
        speedup_low=low,
        speedup_high=high,
        repeats=len(reporting_half(repeated[best][0]))
        if best in repeated
        else len(seconds.get(base_id, {})),
        keep_ddp=keep and against_ddp,
        ranked=ranked,
        cancelled=not pairs,
    )


def _baseline(store: Store, ranked: Sequence[MeasuredRow]) -> MeasuredRow:
    """The strategies with which the confirmation began, or would begin; all were measured."""
    if begun := _begun(store):
        first = begun[0].candidate.strategy.id
        base = next((row for row in ranked if row.candidate.strategy.id == first), None)
    else:
        base = _searched_baseline(ranked)
    if base is not None and base.step_seconds is not None:
        return base
    ddp = next((row for row in ranked if is_ddp(row.candidate.strategy)), None)
    if ddp is None:
        raise _not_compared("it was not tried before the tuning stopped", None)
    raise _not_compared(ddp.error, ddp.error_kind)


def check_comparable(proposals: Sequence[Proposal], result: TrialResult) -> None:
    """Raises AutosyncError where it is the search's latest trial of DDP, and failed for another
    reason than memory: nothing can be compared, whatever else is measured."""
    if (error := _ending_error(result)) is None:
        return
    tried = ddp_trials(proposals)
    if tried and tried[-1].key == result.key:
        raise _not_compared(f"{error.kind}: {error.message}", error.kind)


def ddp_trials(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The search's first proposal of DDP, and those that `ddp_once_more` made of it."""
    searched = [each for each in proposals if each.phase == "search"]
    first = next((each for each in searched if is_ddp(each.candidate.strategy)), None)
    if first is None:
        return []
    return [each for each in searched if f"{each.key}/".startswith(f"{first.key}/")]


def ddp_once_more(store: Store) -> list[Proposal]:
    """The search's trial of DDP under another key. Where the latest one ended the tuning, which now
    goes on, what was wrong with the hosts may be mended. Where all trials have failed lately, the
    hosts may be lost: then every later one would fail, and DDP be kept for no reason."""
    tried, done = ddp_trials(store.proposals()), store.trials()
    errors = {trial.key: _ending_error(trial) for trial in done}
    if not tried or tried[-1].key not in errors:
        return []
    ran = sum(1 for _ in takewhile(lambda each: not errors[each.key], reversed(tried)))
    failed = sum(1 for _ in takewhile(_ending_error, reversed(done)))
    if failed < FAILING * ran:
        return []
    return [replace(tried[0], key=f"{tried[0].key}/{len(tried)}")]


def _ending_error(result: TrialResult) -> TrialError | None:
    """Of a trial that failed for another reason than memory."""
    error = result.error
    return None if error is None or error.kind in LACKS_MEMORY else error


def _not_compared(why: str, kind: ErrorKind | None) -> AutosyncError:
    return AutosyncError(
        f"torch's DDP could not be measured, so nothing can be compared: {why.rstrip('.')}.",
        thing="ddp",
        value=why,
        remedy="No other strategy was measured either: take a smaller batch, or larger devices."
        if kind == "out_of_memory"
        else "Look at the trial's stderr; check that the workers can start.",
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


def _slower_share(base: Sequence[float], other: Sequence[float]) -> float:
    """Of the repeats, `(repeats,)` seconds each, those in which the other was slower."""
    return sum(b < o for b, o in zip(base, other, strict=True)) / len(base)


def _common(first: dict[int, float], second: dict[int, float]) -> tuple[list[float], list[float]]:
    both = sorted(first.keys() & second.keys())
    return [first[repeat] for repeat in both], [second[repeat] for repeat in both]
