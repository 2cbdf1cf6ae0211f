"""The tuning loop (thesis, algorithm 8): sample, rank, select, run, store, refit; then confirm."""

from collections.abc import Callable

import numpy as np

from autosync.bundle import make_bundle
from autosync.cancellation import beside, check_cancelled
from autosync.domain import Domain
from autosync.population import encode
from autosync.search.designs.design_table import own_ddp
from autosync.search.loop.confirm import (
    RACE_FROM,
    check_comparable,
    conclude,
    confirmation,
    ddp_once_more,
    ddp_trials,
    most_confirming_trials,
)
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.earlier_trials import since_then
from autosync.search.loop.outcome import OnEvent, Outcome, TuningEvent
from autosync.search.loop.proposing import propose
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Phase, Proposal, Store
from autosync.search.space import Space
from autosync.simulator.explanation import predicted_slowdown
from autosync.simulator.fitting.iteration_costs import recalibrated
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.simulator_contract import Learner, Simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.trials.contract import Pool, TrialRequest, TrialResult
from autosync.trials.request_names import FAILURES

StopRule = Callable[[Phase], bool]
"""Whether a phase of a tuning shall end now; called before each of its rounds and trials."""


_FOUND = {
    "refined": "a refinement of a measured strategy",
    "neighbour": "a neighbour of a measured strategy",
    "placed": "placed modules",
    "placed_by_policy": "placed modules, by the policy",
}


def never(phase: Phase) -> bool:
    """The rule of a tuning that ends with its budget and its repeats."""
    return False


def tune(
    domain: Domain,
    space: Space,
    open_pool: Callable[[], Pool],
    store: Store,
    simulator: Simulator,
    settings: Settings,
    on_event: OnEvent,
    stop: StopRule = never,
    earlier: EarlierTrials | None = None,
    on_its_devices: bool = False,
) -> Outcome:
    """Find, measure and confirm the fastest strategy of the domain; DDP is always measured.
    Where it runs out of memory, what fits is compared with the fastest known design.

    The loop can stop and continue at any point: trials in the store never run again. stop: may end
    the search before its budget, and the confirmation before its last repeat; earlier measurements
    count. Where DDP's trial ended the tuning, it runs once more. earlier: measurements of a
    tuning of the same model; see `earlier_trials`. on_its_devices: trials take the memory
    that training takes, on the devices of the domain: where DDP ran there, it fits, whatever was
    predicted.

    Raises:
        AutosyncError: torch's DDP could not be measured for another reason than memory, or nothing
            else fits, so that nothing can be compared.
        Cancelled: as the caller's token says; what was measured is stored.
    """
    on_event(TuningEvent("opening", "starting the workers"))
    pool = open_pool()
    try:
        if again := ddp_once_more(store):
            store.propose(again)
        run_pending(domain, pool, store, settings, on_event, stop)
        while (left := _trials_left(store, settings)) > 0 and not stop("search"):
            # the pool is closed at once where this is cancelled, whatever is still computed
            known = beside(learn, domain, simulator, store, earlier)
            chosen = beside(
                propose, known, space, simulator, store, settings, left, on_event, earlier
            )
            if not chosen:
                break
            store.propose(chosen)
            run_pending(domain, pool, store, settings, on_event, stop)
        while not stop("confirm") and (chosen := confirmation(store, settings)):
            store.propose(chosen)
            run_pending(domain, pool, store, settings, on_event, stop)
    finally:
        pool.close()
    predicted = fitting_rows(domain, encode([own_ddp(domain, space)], domain))
    outcome = conclude(store, on_its_devices or len(predicted) > 0)
    on_event(TuningEvent("done", describe_outcome(outcome), best_seconds=outcome.best_seconds))
    return outcome


def run_pending(
    domain: Domain,
    pool: Pool,
    store: Store,
    settings: Settings,
    on_event: OnEvent,
    stop: StopRule = never,
) -> None:
    """Run every stored proposal that has no trial yet and whose phase has not ended, in the order
    in which they were stored, but the search's of DDP before all. That runs once more where several
    failed in a row (`ddp_once_more`): whether hosts are lost. Raises AutosyncError as
    `check_comparable` does."""
    trials = {trial.key: trial for trial in store.trials()}
    proposals = store.proposals()
    best = min((t.step_seconds for t in trials.values() if t.step_seconds), default=None)
    totals = {phase: sum(p.phase == phase for p in proposals) for phase in ("search", "confirm")}
    totals["search"] = max(totals["search"], settings.budget)
    finalists = sum(p.phase == "confirm" and p.round == 0 for p in proposals)
    most = most_confirming_trials(finalists, settings.repeats)
    totals["confirm"] = max(totals["confirm"], most)
    done = dict.fromkeys(totals, 0)
    first = {each.key for each in ddp_trials(proposals)}
    for proposal in sorted(proposals, key=lambda each: each.key not in first):
        done[proposal.phase] += 1
        if (known := trials.get(proposal.key)) is not None:
            check_comparable(proposals, known)
            continue
        if stop(proposal.phase):
            continue
        check_cancelled()
        result = pool.run(_request(proposal, domain, settings))
        store.record(result)
        if result.step_seconds and (best is None or result.step_seconds < best):
            best = result.step_seconds
        phase = proposal.phase
        message = describe_trial(proposal, result)
        on_event(TuningEvent(phase, message, done[phase], totals[phase], best))
        check_comparable(proposals, result)
        answered = phase == "confirm" and proposal.round >= RACE_FROM  # by the repeats before
        again = ddp_once_more(store) if result.error and not answered else []
        if again and not stop("search"):
            store.propose(again)
            run_pending(domain, pool, store, settings, on_event, stop)
            return


def learn(
    domain: Domain, simulator: Simulator, store: Store, earlier: EarlierTrials | None = None
) -> Domain:
    """Teach the simulator every trial so far. Returns the domain to predict with: a simulator that
    learns corrects its predictions itself, the timeline gets costs corrected by the trials."""
    step_seconds = {trial.key: trial.step_seconds for trial in store.trials()}
    strategies, measured = [], []
    for proposal in store.proposals():
        if (seconds := step_seconds.get(proposal.key)) is not None:
            strategies.append(proposal.candidate.strategy)
            measured.append(seconds)
    for strategy, seconds in since_then(earlier, store) if earlier else ():
        strategies.append(strategy)
        measured.append(seconds)
    if not measured:
        return domain
    tried, seconds_tried = encode(strategies, domain), np.array(measured, dtype=np.float64)
    if isinstance(simulator, Learner):
        simulator.refit(domain, tried, seconds_tried)
    elif isinstance(simulator, TimelineSimulator):
        return recalibrated(domain, tried, seconds_tried)
    return domain


def _trials_left(store: Store, settings: Settings) -> int:
    """Of the search; none once its confirmation has begun, wherever the search ended."""
    proposals, done = store.proposals(), {trial.key for trial in store.trials()}
    if any(proposal.phase == "confirm" for proposal in proposals):
        return 0
    return settings.budget - sum(p.phase == "search" and p.key in done for p in proposals)


def _request(proposal: Proposal, domain: Domain, settings: Settings) -> TrialRequest:
    """The finalists and DDP record their timelines in the first repeat, all of them alike."""
    strategy = proposal.candidate.strategy
    return TrialRequest(
        key=proposal.key,
        bundle=make_bundle(strategy, domain),
        warmup=settings.warmup,
        iterations=settings.iterations,
        passes=2 if proposal.phase == "search" else 1,
        timeout_seconds=settings.timeout_seconds * domain.accumulate,
        expected_seconds=proposal.candidate.predicted_seconds,
        record=proposal.phase == "confirm" and proposal.round == 0,
        compute_slowdown=predicted_slowdown(domain, strategy),
    )


def describe_trial(proposal: Proposal, result: TrialResult) -> str:
    candidate = proposal.candidate
    drawn = f"sample {candidate.index}" if candidate.index >= 0 else candidate.origin
    name = candidate.strategy.name or _FOUND.get(candidate.origin, drawn)
    if (error := result.error) is not None and result.step_seconds is None:
        why = f": {error.message}" if error.kind == "refused" else ""  # what to do about it, too
        return f"{name}: {error.kind}{why}"
    if result.step_seconds is None:
        return f"{name}: failed"
    return f"{name}: {result.step_seconds * 1e3:.1f} ms"


def describe_outcome(outcome: Outcome) -> str:
    baseline_ms = f"{outcome.baseline_seconds * 1e3:.1f} ms"
    if outcome.keep_ddp:
        return f"keep DDP: nothing beats its {baseline_ms} beyond noise"
    name = _name(outcome.best)
    if outcome.ddp_seconds is not None:
        than, before = "DDP", ""
    else:
        happened = FAILURES.get(outcome.ddp_error_kind or "", "was not tried")
        than, before = _name(outcome.baseline), f"DDP {happened}; "
    if outcome.keeps_baseline:
        which = "that fits" if outcome.ddp_error_kind == "out_of_memory" else "else"
        return f"{before}{name}: nothing {which} beats its {baseline_ms} beyond noise"
    interval = f"{outcome.speedup_low:.2f} to {outcome.speedup_high:.2f}"
    return (
        f"{before}{name}: {outcome.best_seconds * 1e3:.1f} ms, {outcome.speedup:.2f} times "
        f"{than}'s speed ({interval} over {outcome.repeats} repeats)"
    )


def _name(candidate: Candidate) -> str:
    return candidate.strategy.name or _FOUND.get(candidate.origin, "a sampled strategy")
