"""The memory of one tuning as workers use it, and the one over the database."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, undefer

from autosync.api.db.database import Database
from autosync.api.db.document_store import (
    domain_rows,
    insert_new,
    insert_rows,
    load_domain,
    load_strategies,
    store_strategy,
)
from autosync.api.db.tables import ACTIVE, EventRow, ProposalRow, StrategyRow, TrialRow, TuningRow
from autosync.api.engine.phases import PHASES
from autosync.api.engine.strategy_summaries import add_summary, update_summary
from autosync.cancellation import Cancelled
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.errors import AutosyncError, InvalidInput
from autosync.search.loop.outcome import TuningEvent, strategy_id
from autosync.search.loop.tuning_store import Candidate, Phase, Proposal, Store
from autosync.strategy import Strategy
from autosync.trials.contract import MeasuredTimeline, TrialError, TrialResult
from autosync.units import MIB

Query = TypeVar("Query", bound=Select[Any])

PART_BYTES = 8 * MIB
"""Of the documents that a worker of a service gets at once: a few of the largest models."""
PART_ROWS = 32
"""Whose bytes are counted for one part."""


class LeaseLost(AutosyncError):
    """Another worker has taken the tuning over: this one must stop and write nothing more."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """held_seconds: how long workers have had a tuning. limit_seconds: the most that its operator
    allows; None: any time."""

    held_seconds: float
    limit_seconds: float | None


class TuningStore(Store, Protocol):
    """The memory of one tuning, as a worker uses it under a claim. `propose` and `record` raise
    Cancelled, with what they were given stored, where somebody asked the tuning to pause. What
    writes raises LeaseLost where the claim does not hold any longer."""

    def end_if_paused(self) -> None:
        """Raises Cancelled where somebody asked the tuning to pause: between two trials."""
        ...

    def time_spent(self) -> TimeSpent: ...

    def report(self, event: TuningEvent) -> None:
        """Write progress: an event, and how far the tuning is."""
        ...

    def use_domain(self, domain: Domain) -> None:
        """From now on the tuning is about this domain: the same, with costs measured."""
        ...


class DatabaseStore:
    """Every call is one transaction that first checks the fencing token.

    fence: the number of the claim under which the caller works.
    """

    def __init__(self, database: Database, tuning_id: str, fence: int):
        self.database = database
        self.tuning_id = tuning_id
        self.fence = fence
        self._strategies: dict[str, Strategy] = {}  # documents never change: parsed once
        self._domain: Domain | None = None

    def proposals(self, first: int = 0, most: int | None = None) -> Sequence[Proposal]:
        """Those from position `first` on, so many of them; by default all."""
        with self.database.reading() as session:
            rows = read_proposals(session, self.tuning_id, first, most)
            unknown = {row.strategy_hash for row in rows} - self._strategies.keys()
            self._strategies |= load_strategies(session, unknown)
            return [proposal_of(row, self._strategies[row.strategy_hash]) for row in rows]

    def trials(self, first: int = 0, most: int | None = None) -> Sequence[TrialResult]:
        """As `proposals`."""
        with self.database.reading() as session:
            return [trial_of(row) for row in read_trials(session, self.tuning_id, first, most)]

    def propose(self, proposals: Sequence[Proposal]) -> None:
        """Raises Cancelled where the tuning is to pause."""
        if proposals and self._domain is None:
            self._domain = self._loaded_domain()
        # else two tunings that store the same ones at once would wait for each other
        in_order = sorted(proposals, key=strategy_id)
        with self._fenced() as (session, _):
            hashes = {each.key: self._stored(session, each) for each in in_order}
            position = _next_position(session, ProposalRow, self.tuning_id)
            for proposal in proposals:
                strategy_hash = hashes[proposal.key]
                row = _proposal_columns(proposal, position, strategy_hash)
                if insert_new(session, ProposalRow, tuning_id=self.tuning_id, **row):
                    add_summary(session, self.tuning_id, strategy_hash, position, row)
                    position += 1
        self.end_if_paused()

    def _stored(self, session: Session, proposal: Proposal) -> str:
        """The hash of its strategy's document."""
        assert self._domain is not None
        return store_strategy(session, proposal.candidate.strategy, self._domain)

    def _loaded_domain(self) -> Domain:
        """Before a transaction that writes: nobody else writes to SQLite meanwhile, and to parse a
        large graph takes seconds."""
        with self.database.reading() as session:
            tuning = session.get_one(TuningRow, self.tuning_id)
            return load_domain(session, tuning.domain_id)

    def record(self, result: TrialResult, again: bool = False) -> None:
        """Raises Cancelled, with the trial stored, where the tuning is to pause. again: the call
        may come twice, since its first answer was lost: a trial that this claim has recorded
        stays as it is.
        """
        with self._fenced() as (session, tuning):
            proposal = session.get(ProposalRow, (self.tuning_id, result.key))
            if proposal is None:
                raise _refused(result.key, "is no proposal of this tuning")
            position = _next_position(session, TrialRow, self.tuning_id)
            if _insert_trial(session, tuning, proposal, position, result):
                update_summary(session, self.tuning_id, proposal.strategy_id)
                if result.launcher not in tuning.ran_on:
                    tuning.ran_on = [*tuning.ran_on, result.launcher]
            elif not (again and self._recorded(session, result.key)):
                raise _refused(result.key, "is recorded already")
        self.end_if_paused()

    def _recorded(self, session: Session, key: str) -> bool:
        """Whether the trial is of this claim."""
        return session.get_one(TrialRow, (self.tuning_id, key)).fence == self.fence

    def end_if_paused(self) -> None:
        with self.database.reading() as session:
            state = session.get_one(TuningRow, self.tuning_id).state
        if state == "pausing":
            raise Cancelled("paused")

    def time_spent(self) -> TimeSpent:
        with self.database.reading() as session:
            tuning = session.get_one(TuningRow, self.tuning_id)
            return TimeSpent(tuning.held_seconds, tuning.limit_seconds)

    def report(self, event: TuningEvent) -> None:
        with self._fenced() as (session, tuning):
            tuning.message = clean(event.message)
            if event.kind in PHASES:
                tuning.phase, tuning.done, tuning.total = event.kind, event.done, event.total
            if event.best_seconds is not None:
                tuning.best_seconds = event.best_seconds
            if event.kind == "ranking" and event.done == event.total:
                tuning.ranked += event.done
            add_event(session, self.tuning_id, event)

    def use_domain(self, domain: Domain) -> None:
        rows = domain_rows(domain)  # made before the database is locked
        with self._fenced() as (session, tuning):
            insert_rows(session, rows)
            tuning.domain_id = domain.id
            self._domain = domain

    @contextmanager
    def _fenced(self) -> Iterator[tuple[Session, TuningRow]]:
        with self.database.writing() as session:
            tuning = session.get_one(TuningRow, self.tuning_id, with_for_update=True)
            check_fence(tuning, self.fence)
            yield session, tuning


def check_fence(tuning: TuningRow, fence: int) -> None:
    """Raises LeaseLost."""
    if tuning.fence != fence or tuning.state not in ACTIVE:
        raise LeaseLost(
            f"tuning {tuning.id} is {tuning.state} under claim {tuning.fence}, not {fence}.",
            thing="tuning",
            value=tuning.id,
            remedy="Another worker goes on with it.",
        )


def read_proposals(
    session: Session, tuning_id: str, first: int = 0, most: int | None = None
) -> Sequence[ProposalRow]:
    """Those from position `first` on, so many of them; by default all."""
    return session.scalars(_part(select(ProposalRow), ProposalRow, tuning_id, first, most)).all()


def read_trials(
    session: Session, tuning_id: str, first: int = 0, most: int | None = None
) -> Sequence[TrialRow]:
    """As `read_proposals`."""
    whole = select(TrialRow).options(undefer(TrialRow.timeline))
    return session.scalars(_part(whole, TrialRow, tuning_id, first, most)).all()


def next_part(session: Session, tuning_id: str, first: int) -> tuple[int, int]:
    """How many proposals and trials from position `first` on a worker of a service gets at once: as
    many as have PART_BYTES of documents, but one at least. And how many bytes these have."""
    of_proposals = (
        select(func.length(StrategyRow.document))
        .select_from(ProposalRow)
        .join(StrategyRow, StrategyRow.hash == ProposalRow.strategy_hash)
    )
    of_trials = select(func.length(TrialRow.timeline))
    strategies = session.scalars(_part(of_proposals, ProposalRow, tuning_id, first, PART_ROWS))
    timelines = session.scalars(_part(of_trials, TrialRow, tuning_id, first, PART_ROWS))
    count = size_bytes = 0
    for strategy, timeline in zip_longest(strategies.all(), timelines.all(), fillvalue=0):
        together = strategy + (timeline or 0)  # most trials have no timeline
        if count and size_bytes + together > PART_BYTES:
            break
        count, size_bytes = count + 1, size_bytes + together
    return count, size_bytes


def _part(
    query: Query,
    table: type[ProposalRow] | type[TrialRow],
    tuning_id: str,
    first: int,
    most: int | None,
) -> Query:
    later = query.where(table.tuning_id == tuning_id, table.position >= first)
    return later.order_by(table.position).limit(most)


def proposal_of(row: ProposalRow, strategy: Strategy) -> Proposal:
    candidate = Candidate(
        strategy, row.predicted_seconds, row.simulator, row.origin, row.seed, row.index
    )
    phase: Phase = "confirm" if row.phase == "confirm" else "search"
    return Proposal(row.key, phase, row.round, candidate)


def trial_of(row: TrialRow) -> TrialResult:
    error = timeline = None
    if row.timeline is not None:
        timeline = from_json(MeasuredTimeline, row.timeline)
    if row.error_kind is not None:
        error = TrialError(
            row.error_kind,  # type: ignore[arg-type]  # written from the same literal
            row.error_message or "",
            row.error_stderr or "",
        )
    return TrialResult(
        key=row.key,
        iteration_seconds=tuple(row.iteration_seconds),
        step_seconds=row.step_seconds,
        spread=row.spread,
        error=error,
        launcher=row.launcher,
        byte_scale=row.byte_scale,
        time_scale=row.time_scale,
        load=row.load,
        overhead_seconds=row.overhead_seconds,
        peak_memory_bytes=row.peak_memory_bytes,
        sent_bytes=tuple(row.sent_bytes or ()),
        timeline=timeline,
        versions=tuple((name, version) for name, version in row.versions),
    )


def add_event(session: Session, tuning_id: str, event: TuningEvent) -> None:
    session.add(
        EventRow(
            tuning_id=tuning_id,
            kind=event.kind,
            message=clean(event.message),
            done=event.done,
            total=event.total,
            best_seconds=event.best_seconds,
        )
    )


def clean(text: str) -> str:
    """Without NUL and lone surrogates, which PostgreSQL refuses (a crash may print anything)."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def _proposal_columns(proposal: Proposal, position: int, strategy_hash: str) -> dict[str, Any]:
    candidate = proposal.candidate
    return {
        "key": proposal.key,
        "position": position,
        "phase": proposal.phase,
        "round": proposal.round,
        "strategy_hash": strategy_hash,
        "strategy_id": candidate.strategy.id,
        "predicted_seconds": candidate.predicted_seconds,
        "simulator": candidate.simulator,
        "origin": candidate.origin,
        "seed": candidate.seed,
        "index": candidate.index,
    }


def _insert_trial(
    session: Session, tuning: TuningRow, proposal: ProposalRow, position: int, result: TrialResult
) -> bool:
    error = result.error
    return insert_new(
        session,
        TrialRow,
        tuning_id=tuning.id,
        key=result.key,
        position=position,
        domain_id=tuning.domain_id,
        strategy_id=proposal.strategy_id,
        step_seconds=result.step_seconds,
        spread=result.spread,
        iteration_seconds=list(result.iteration_seconds),
        error_kind=error and error.kind,
        error_message=error and clean(error.message),
        error_stderr=error and clean(error.stderr_tail),
        launcher=result.launcher,
        byte_scale=result.byte_scale,
        time_scale=result.time_scale,
        load=result.load,
        overhead_seconds=result.overhead_seconds,
        peak_memory_bytes=result.peak_memory_bytes,
        sent_bytes=list(result.sent_bytes),
        timeline=result.timeline and to_json(result.timeline),
        versions=[list(pair) for pair in result.versions],
        fence=tuning.fence,
        worker=tuning.worker,
    )


def _next_position(
    session: Session, table: type[ProposalRow] | type[TrialRow], tuning_id: str
) -> int:
    """How many there are: positions have no gaps, and the last one is found by its index."""
    last = session.scalar(select(func.max(table.position)).where(table.tuning_id == tuning_id))
    return 0 if last is None else last + 1


def _refused(key: str, why: str) -> InvalidInput:
    return InvalidInput(f"the trial {key!r} {why}.", thing="trial", value=key)
