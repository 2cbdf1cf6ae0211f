"""The contract of `tuning_store.Store`, and the fencing of those that workers use."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from autosync.api.db import Database
from autosync.api.db.document_store import DocumentRow, domain_rows, load_domain, store_strategy
from autosync.api.db.tables import StrategyRow, TrialRow, TuningRow
from autosync.api.engine import database_store, job_queue
from autosync.api.engine.database_store import DatabaseStore, LeaseLost, TuningStore
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.tuning_store import MemoryStore, Store
from autosync.strategy import Strategy
from autosync.trials.contract import TrialError
from tests.api.client.service_queues import service_queue
from tests.api.conftest import fresh_url
from tests.api.databases import opened
from tests.api.sample import candidates, claimed, proposal, result, small_request, timeline

REQUEST = small_request()
CANDIDATES = candidates(REQUEST.domain, 4)
PROPOSALS = [proposal(candidate) for candidate in CANDIDATES]


@pytest.fixture(params=["memory", "sqlite", "postgresql", "service"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "service":
        database = request.getfixturevalue("sqlite")
        held, _ = claimed(database, REQUEST)
        with service_queue(database) as queue:
            yield queue.store(held)
    else:
        with fresh_url(request, request.param) as url, opened(url) as database:
            yield claimed(database, REQUEST)[1]


def test_gives_back_what_was_stored_in_order(store: Store) -> None:
    rng = random.Random(0)
    store.propose(PROPOSALS[:2])
    store.propose(PROPOSALS[2:])
    results = [result(one.key, REQUEST, 0.02 * i, rng) for i, one in enumerate(PROPOSALS[::-1], 1)]
    strategy = PROPOSALS[-1].candidate.strategy
    results[0] = replace(results[0], timeline=timeline(strategy, REQUEST.domain, rng))
    for one in results:
        store.record(one)
    assert list(store.proposals()) == PROPOSALS
    assert list(store.trials()) == results


def test_a_key_that_is_there_is_left_alone(store: Store) -> None:
    store.propose(PROPOSALS[:2])
    changed = replace(PROPOSALS[0], candidate=replace(CANDIDATES[0], predicted_seconds=99.0))
    store.propose([changed, PROPOSALS[2]])
    assert list(store.proposals()) == PROPOSALS[:3]


def test_recording_twice_is_an_error_and_the_first_stays(store: Store) -> None:
    rng = random.Random(0)
    store.propose(PROPOSALS)
    first = result(PROPOSALS[0].key, REQUEST, 0.05, rng)
    store.record(first)
    with pytest.raises(InvalidInput, match="recorded"):
        store.record(result(PROPOSALS[0].key, REQUEST, 0.04, rng))
    assert list(store.trials()) == [first]


def test_a_failed_trial_is_a_result(store: Store) -> None:
    store.propose(PROPOSALS)
    failed = result(PROPOSALS[1].key, REQUEST, None, random.Random(0))
    store.record(failed)
    assert store.trials()[0] == failed
    assert store.trials()[0].error is not None


def test_a_trial_without_a_proposal_is_refused(database: Database) -> None:
    _, store = claimed(database, REQUEST)
    with pytest.raises(InvalidInput, match="no proposal"):
        store.record(result("search/0/unknown", REQUEST, 0.05, random.Random(0)))


def test_proposals_are_stored_whole_or_not_at_all(database: Database) -> None:
    _, store = claimed(database, REQUEST)
    nothing = replace(CANDIDATES[1], predicted_seconds=None)  # type: ignore[arg-type]
    broken = replace(PROPOSALS[1], candidate=nothing)  # refused by the database, after the first
    with pytest.raises(IntegrityError):
        store.propose([PROPOSALS[0], broken, PROPOSALS[2]])
    assert list(store.proposals()) == []


def test_tunings_store_the_same_strategies_in_the_same_order(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else PostgreSQL ends one of two that do so at once: each has what the other waits for."""
    stored: list[str] = []

    def noted(session: Session, strategy: Strategy, domain: Domain) -> str:
        stored.append(strategy.id)
        return store_strategy(session, strategy, domain)

    monkeypatch.setattr(database_store, "store_strategy", noted)
    for proposals in (PROPOSALS, PROPOSALS[::-1]):
        _, store = claimed(sqlite, REQUEST)
        store.propose(proposals)
        assert list(store.proposals()) == proposals
    assert stored[: len(PROPOSALS)] == stored[len(PROPOSALS) :]


def test_others_write_while_a_domain_is_parsed(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large graph takes seconds."""
    held, store = claimed(sqlite, REQUEST)
    parsed = load_domain

    def beside_others(session: Session, key: str) -> Domain:
        assert job_queue.heartbeat(sqlite, held)
        return parsed(session, key)

    monkeypatch.setattr(database_store, "load_domain", beside_others)
    store.propose(PROPOSALS)
    assert list(store.proposals()) == PROPOSALS


def test_others_write_while_the_documents_of_a_domain_are_made(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, store = claimed(sqlite, REQUEST)
    made = domain_rows

    def beside_others(domain: Domain) -> tuple[DocumentRow, ...]:
        assert job_queue.heartbeat(sqlite, held)
        return made(domain)

    monkeypatch.setattr(database_store, "domain_rows", beside_others)
    profile = replace(REQUEST.domain.profile, update_seconds=1e-3)
    slower = replace(REQUEST.domain, profile=profile)
    store.use_domain(slower)
    with sqlite.reading() as session:
        tuning = session.get_one(TuningRow, held.job_id)
        assert load_domain(session, tuning.domain_id) == slower


def test_what_a_crash_prints_can_be_stored(database: Database) -> None:
    _, store = claimed(database, REQUEST)
    store.propose(PROPOSALS)
    failed = result(PROPOSALS[0].key, REQUEST, None, random.Random(0))
    odd = TrialError("crashed", "signal\x00 11", "\ud800 \x00 stderr")
    store.record(replace(failed, error=odd))
    error = store.trials()[0].error
    assert error is not None
    assert (error.message, error.stderr_tail) == ("signal 11", "?  stderr")


def test_a_strategy_document_is_kept_once(database: Database) -> None:
    _, store = claimed(database, REQUEST)
    store.propose(PROPOSALS)
    again = [replace(one, key=f"confirm/0/{i}", phase="confirm") for i, one in enumerate(PROPOSALS)]
    store.propose(again)
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(StrategyRow)) == len(PROPOSALS)
    assert list(DatabaseStore(database, store.tuning_id, store.fence).proposals()) == [
        *PROPOSALS,
        *again,
    ]


def test_every_record_says_what_was_measured_where(database: Database) -> None:
    held, store = claimed(database, REQUEST)
    store.propose(PROPOSALS)
    store.record(result(PROPOSALS[0].key, REQUEST, 0.05, random.Random(0)))
    with database.reading() as session:
        row = session.scalars(select(TrialRow)).one()
    assert row.domain_id == REQUEST.domain.id
    assert row.strategy_id == CANDIDATES[0].strategy.id
    assert (row.byte_scale, row.time_scale) == (0.5, 2.0)
    assert dict(row.versions) == {"torch": "2.13.0", "autosync": "0.1.0", "python": "3.11"}
    assert (row.fence, row.worker, row.load) == (held.fence, "test", 0.02)
    assert len(row.iteration_seconds) == 10
    assert row.sent_bytes == [1_000_000, 900_000, 900_000, 1_000_000]
    assert row.peak_memory_bytes == 312 * 2**20


WRITES: list[Callable[[TuningStore], object]] = [
    lambda store: store.propose(PROPOSALS),
    lambda store: store.record(result(PROPOSALS[0].key, REQUEST, 0.05, random.Random(0))),
    lambda store: store.report(TuningEvent("search", "late", 1, 2, 0.1)),
]


@pytest.mark.parametrize("write", WRITES, ids=["propose", "record", "report"])
def test_a_worker_whose_lease_was_taken_over_cannot_write(
    database: Database, write: Callable[[TuningStore], object]
) -> None:
    held, old = claimed(database, REQUEST)
    old.propose(PROPOSALS[:1])
    job_queue.heartbeat(database, held, lease_seconds=-1)
    taken = job_queue.claim(database, "other")
    assert taken is not None
    assert taken.job_id == held.job_id
    with pytest.raises(LeaseLost):
        write(old)
    new = DatabaseStore(database, taken.job_id, taken.fence)
    assert list(new.proposals()) == PROPOSALS[:1]
    assert list(new.trials()) == []
    write(new)


@pytest.mark.parametrize("write", WRITES, ids=["propose", "record", "report"])
def test_nor_can_one_of_a_service(sqlite: Database, write: Callable[[TuningStore], object]) -> None:
    held, _ = claimed(sqlite, REQUEST)
    with service_queue(sqlite) as queue:
        old = queue.store(held)
        old.propose(PROPOSALS[:1])
        job_queue.expire(sqlite, held)
        taken = queue.claim("other:1", 60.0, job_queue.Abilities(("local",), 0))
        assert taken is not None
        assert (taken.job_id, taken.fence) == (held.job_id, held.fence + 1)
        with pytest.raises(LeaseLost):
            write(old)
        new = queue.store(taken)
        assert list(new.proposals()) == PROPOSALS[:1]
        assert list(new.trials()) == []
        write(new)


def test_a_trial_that_is_sent_again_under_its_claim_is_stored_once(database: Database) -> None:
    """Over a network an answer may be lost; the worker then sends the trial again."""
    held, store = claimed(database, REQUEST)
    store.propose(PROPOSALS)
    first = result(PROPOSALS[0].key, REQUEST, 0.05, random.Random(0))
    store.record(first, again=True)
    store.record(first, again=True)
    assert list(store.trials()) == [first]
    job_queue.expire(database, held)
    taken = job_queue.claim(database, "other")
    assert taken is not None
    with pytest.raises(InvalidInput, match="recorded already"):
        DatabaseStore(database, taken.job_id, taken.fence).record(first, again=True)
