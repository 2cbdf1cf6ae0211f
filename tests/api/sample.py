"""A tuning written through the queue and the store, as a worker would write it."""

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from autosync.api.db.database import Database
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.engine.job_queue import Claim
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_answer import answer_of, outcome_row
from autosync.api.engine.tuning_request import TuningRequest
from autosync.domain import Domain
from autosync.population import encode
from autosync.search.loop.confirm import conclude, confirmation, most_confirming_trials
from autosync.search.loop.design_candidates import known_designs
from autosync.search.loop.outcome import DDP, TuningEvent, is_ddp
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Proposal
from autosync.search.space import Space
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import IterationTrace, predicted_iteration
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.trials.contract import (
    ComputeTimes,
    MeasuredTimeline,
    MessageTimes,
    Phase,
    RankTimeline,
    TrialError,
    TrialResult,
)
from tests.domains import domain_of

TESTBED = "testbed (4 nodes)"


def small_request(budget: int = 6, space: Space = Space()) -> TuningRequest:  # noqa: B008  # frozen
    """A domain of six variables on four nodes, and little to do."""
    settings = Settings(budget=budget, proposals=64, repeats=3)
    return TuningRequest(
        domain_of(), settings, space, launcher="local", byte_scale=0.5, time_scale=2.0
    )


def candidates(
    domain: Domain,
    count: int,
    space: Space = Space(),  # noqa: B008  # frozen
) -> list[Candidate]:
    """Hand-designed strategies, DDP first."""
    return list(_all_candidates(domain, space)[:count])


@cache  # many tests have a tuning of the same domain
def _all_candidates(domain: Domain, space: Space) -> tuple[Candidate, ...]:
    return tuple(known_designs(domain, space, TimelineSimulator()))


def proposal(candidate: Candidate) -> Proposal:
    key = f"search/0/{candidate.strategy.id}"
    return Proposal(key, "search", 0, candidate)


def timeline(strategy: Strategy, domain: Domain, rng: random.Random) -> MeasuredTimeline:
    """What a trial records if every message takes up to half as long again as predicted; torch's
    DDP does not tell its messages."""
    trace = _predicted(strategy, domain)
    issued = tuple(message.issued_seconds for message in trace.messages)
    ended = tuple(
        m.issued_seconds + (m.arrived_seconds - m.issued_seconds) * rng.uniform(1, 1.5)
        for m in trace.messages
    )
    numbers = tuple(message.message for message in trace.messages)
    ranks = []
    for rank in range(domain.world_size):
        mine = [each for each in trace.compute if each.rank == rank]
        compute = ComputeTimes(
            tuple(cast(Phase, each.phase) for each in mine),
            tuple(each.start_seconds for each in mine),
            tuple(each.stop_seconds for each in mine),
        )
        messages = None if is_ddp(strategy) else MessageTimes(numbers, issued, issued, ended)
        ranks.append(RankTimeline(compute, messages))
    return MeasuredTimeline(trace.step_seconds, "shared", tuple(ranks))


@cache
def _predicted(strategy: Strategy, domain: Domain) -> IterationTrace:
    population = encode([strategy], domain)
    return predicted_iteration(compile_plans_fast(population, domain), population, domain)


def result(
    key: str, request: TuningRequest, seconds: float | None, rng: random.Random
) -> TrialResult:
    """A trial of `seconds`, give or take; None is one that timed out."""
    times = () if seconds is None else tuple(seconds * rng.uniform(0.98, 1.02) for _ in range(10))
    return TrialResult(
        key=key,
        iteration_seconds=times,
        step_seconds=sorted(times)[5] if times else None,
        spread=0.03 if times else None,
        error=None if times else TrialError("timeout", "no answer within 120 s", "worker 2: ..."),
        launcher=TESTBED,
        byte_scale=request.byte_scale,
        time_scale=request.time_scale,
        load=0.02,
        overhead_seconds=0.04,
        peak_memory_bytes=312 * 2**20,
        sent_bytes=(1_000_000, 900_000, 900_000, 1_000_000) if times else (),
        versions=(("torch", "2.13.0"), ("autosync", "0.1.0"), ("python", "3.11")),
    )


def claimed(database: Database, request: TuningRequest) -> tuple[Claim, DatabaseStore]:
    """The requested tuning under a claim, and its store."""
    enqueue(database, request)
    held = job_queue.claim(database, "test")
    assert held is not None
    return held, DatabaseStore(database, held.job_id, held.fence)


def run_search(store: DatabaseStore, request: TuningRequest, launcher: str = TESTBED) -> None:
    """Every proposal gets a trial; the last of them fails. launcher: where trials say they ran."""
    rng = random.Random(1)
    chosen = candidates(request.domain, request.settings.budget, request.space)
    store.propose([proposal(candidate) for candidate in chosen])
    store.report(TuningEvent("ranking", "ranking proposals, round 1", 30_000, 30_000))
    best = float("inf")
    for done, candidate in enumerate(chosen, 1):
        seconds = None if done == len(chosen) else candidate.predicted_seconds * rng.uniform(1, 1.3)
        if seconds and candidate.origin == DDP:
            seconds *= 1.25
        measured = result(proposal(candidate).key, request, seconds, rng)
        store.record(replace(measured, launcher=launcher))
        best = min(best, measured.step_seconds or best)
        store.report(TuningEvent("search", f"{candidate.origin} measured", done, len(chosen), best))


def waiting(message: str) -> TuningEvent:
    """An event that only has something to tell; the loop may send any kind of them."""
    return TuningEvent(cast(Any, "waiting"), message)


def run_confirmation(
    database: Database, store: DatabaseStore, held: Claim, request: TuningRequest
) -> None:
    """The finalists in interleaved repeats, then the answer."""
    rng = random.Random(2)
    search = {p.candidate.strategy.id: p.key for p in store.proposals() if p.phase == "search"}
    seconds = {trial.key: trial.step_seconds for trial in store.trials()}
    done, most = 0, 0
    while finalists := confirmation(store, request.settings):
        store.propose(finalists)
        most = most or most_confirming_trials(len(finalists), request.settings.repeats)
        for one in finalists:
            near = seconds[search[one.candidate.strategy.id]]
            measured = result(one.key, request, near, rng)
            if one.round == 0:
                strategy = one.candidate.strategy
                measured = replace(measured, timeline=timeline(strategy, request.domain, rng))
            store.record(measured)
            done += 1
            store.report(TuningEvent("confirm", "confirming", done, most))
    job_queue.finish(database, held, outcome_row(held.job_id, answer_of(request, conclude(store))))


def finished(database: Database, request: TuningRequest | None = None) -> str:
    """The id of a finished tuning."""
    request = request or small_request()
    held, store = claimed(database, request)
    run_search(store, request)
    run_confirmation(database, store, held, request)
    return held.job_id


@dataclass(frozen=True, slots=True)
class Shown:
    """A database that nobody changes. first, second: finished, of 8 and of 6 strategies."""

    database: Database
    first: str
    second: str


def shown_tunings(database: Database) -> Shown:
    return Shown(database, finished(database, small_request(budget=8)), finished(database))


def finished_without_ddp(database: Database, request: TuningRequest) -> str:
    """The id of a tuning whose DDP ran out of memory; the others took what was predicted."""
    held, store = claimed(database, request)
    _search_without_ddp(store, request)
    run_confirmation(database, store, held, request)
    return held.job_id


def confirming_without_ddp(database: Database, request: TuningRequest) -> str:
    """The id of such a tuning whose finalists have run in the first repeat."""
    held, store = claimed(database, request)
    _search_without_ddp(store, request)
    rng = random.Random(2)
    finalists = confirmation(store, request.settings)
    store.propose(finalists)
    for one in finalists:
        store.record(result(one.key, request, one.candidate.predicted_seconds, rng))
    return held.job_id


def _search_without_ddp(store: DatabaseStore, request: TuningRequest) -> None:
    rng = random.Random(1)
    chosen = candidates(request.domain, request.settings.budget)
    store.propose([proposal(candidate) for candidate in chosen])
    for candidate in chosen:
        seconds = None if candidate.origin == DDP else candidate.predicted_seconds
        measured = result(proposal(candidate).key, request, seconds, rng)
        if candidate.origin == DDP:
            error = TrialError("out_of_memory", "rank 1: can't allocate memory")
            measured = replace(measured, error=error)
        store.record(measured)
