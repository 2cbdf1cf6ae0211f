"""Keys and browsers' sessions: shown once, kept as hashes, over when revoked."""

import time

import pytest
from sqlalchemy import select, text

from autosync.api.db import Database
from autosync.api.db.tables import SCOPES, ApiKeyRow, Base, BrowserSessionRow
from autosync.api.engine.api_keys import (
    KEY,
    SESSION_SECONDS,
    allows,
    begin_session,
    digest_of,
    end_session,
    has_keys,
    key_of_session,
    living_key,
    make_key,
    note_use,
    proof_of,
    revoke_key,
    token_proof_of_session,
)
from autosync.api.views.service import api_key, api_keys
from autosync.errors import InvalidInput, NotFound

COOKIE, OTHER = "c" * 43, "d" * 43


def known(sqlite: Database, shown: str) -> str | None:
    """The id of the key, where it lets somebody in."""
    with sqlite.reading() as session:
        row = living_key(session, shown)
        return row.id if row else None


def test_a_key_is_shown_once_and_kept_as_a_hash(sqlite: Database) -> None:
    with sqlite.reading() as session:
        assert not has_keys(session)
    made = make_key(sqlite, "alice", "tune")
    assert KEY.fullmatch(made.text)
    assert made.text not in repr(made)
    secret = made.text.partition(".")[2]
    assert known(sqlite, made.text) == made.id
    with sqlite.reading() as session:
        everything = [
            str(row)
            for table in Base.metadata.tables.values()
            for row in session.execute(select(table))
        ]
        assert not any(secret in row for row in everything)
        assert any(digest_of(secret) in row for row in everything)
        assert has_keys(session)
        assert secret not in api_keys(session).model_dump_json()
        assert digest_of(secret) not in api_keys(session).model_dump_json()


def test_what_is_nearly_a_key_lets_nobody_in(sqlite: Database) -> None:
    one, two = make_key(sqlite, "alice", "read"), make_key(sqlite, "bob", "admin")
    mixed = f"{two.id}.{one.text.partition('.')[2]}"
    turned = one.text[:-1] + ("A" if one.text[-1] != "A" else "B")
    hashed = f"{one.id}.{digest_of(one.text.partition('.')[2])[:43]}"
    unknown = f"{'0' * 12}.{one.text.partition('.')[2]}"
    for wrong in (mixed, turned, hashed, unknown, one.id, "", ".", f"{one.text}\n", "ü" * 56):
        assert known(sqlite, wrong) is None, wrong


def test_a_revoked_key_and_an_expired_one_let_nobody_in(sqlite: Database) -> None:
    revoked = make_key(sqlite, "alice", "admin")
    brief = make_key(sqlite, "alice", "admin", days=1)
    assert known(sqlite, brief.text) == brief.id
    with sqlite.writing() as session:
        session.execute(
            text("update api_keys set expires_at = expires_at - 86401 where id = :id"),
            {"id": brief.id},
        )
    revoke_key(sqlite, revoked.id)
    with sqlite.reading() as session:
        first = api_key(session, revoked.id).revoked_at
    revoke_key(sqlite, revoked.id)
    assert known(sqlite, revoked.text) is None
    assert known(sqlite, brief.text) is None
    with sqlite.reading() as session:
        assert api_key(session, revoked.id).revoked_at == first is not None
        assert has_keys(session), "a service that was closed stays so"
        listed = api_keys(session)
    assert {each.id for each in listed.items} == {revoked.id, brief.id}
    with pytest.raises(NotFound, match="no key 'nothing'"):
        revoke_key(sqlite, "nothing")


def test_keys_come_in_pages_and_say_when_they_were_used(sqlite: Database) -> None:
    made = [make_key(sqlite, f"client-{number}", "read").id for number in range(3)]
    note_use(sqlite, made[0])
    with sqlite.reading() as session:
        first = api_keys(session, limit=2)
        assert first.next is not None
        rest = api_keys(session, limit=2, cursor=first.next)
        used = {each.id: each.last_used_at for each in (*first.items, *rest.items)}
    assert rest.next is None
    assert set(used) == set(made)
    assert abs(used[made[0]].timestamp() - time.time()) < 300  # type: ignore[union-attr]
    assert used[made[1]] is used[made[2]] is None


@pytest.mark.parametrize(
    ("name", "scope", "days", "thing"),
    [
        ("", "read", None, "name"),
        ("a b", "read", None, "name"),
        ("a" * 41, "read", None, "name"),
        ("a\n", "read", None, "name"),
        ("alice", "root", None, "scope"),
        ("alice", "read", 0, "days"),
        ("alice", "read", 4000, "days"),
        ("alice", "read", float("nan"), "days"),
    ],
)
def test_what_can_be_no_key_is_named(
    sqlite: Database, name: str, scope: str, days: float | None, thing: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        make_key(sqlite, name, scope, days)  # type: ignore[arg-type]
    assert refused.value.thing == thing
    assert refused.value.remedy


def test_scopes_contain_each_other() -> None:
    """That of a worker contains no other: it reads nothing but its own tuning."""
    held = [(a, b) for a in SCOPES for b in SCOPES]
    assert [pair for pair in held if allows(*pair)] == [
        ("read", "read"),
        ("tune", "read"),
        ("tune", "tune"),
        ("worker", "worker"),
        ("admin", "read"),
        ("admin", "tune"),
        ("admin", "worker"),
        ("admin", "admin"),
    ]


def test_a_session_lasts_no_longer_than_its_key(sqlite: Database) -> None:
    made = make_key(sqlite, "alice", "read")
    begin_session(sqlite, COOKIE, key_id=made.id)
    with sqlite.reading() as session:
        row = key_of_session(session, COOKIE)
        assert row is not None
        assert row.id == made.id
        assert key_of_session(session, OTHER) is None
        assert COOKIE not in str(session.execute(select(BrowserSessionRow.__table__)).all())
    revoke_key(sqlite, made.id)
    with sqlite.reading() as session:
        assert key_of_session(session, COOKIE) is None


def test_a_session_ends_by_its_time_or_by_a_log_out(sqlite: Database) -> None:
    made = make_key(sqlite, "alice", "read")
    begin_session(sqlite, COOKIE, key_id=made.id)
    begin_session(sqlite, OTHER, token="open sesame")
    with sqlite.reading() as session:
        assert token_proof_of_session(session, OTHER) == proof_of(OTHER, "open sesame")
        assert token_proof_of_session(session, OTHER) != proof_of(COOKIE, "open sesame")
        assert token_proof_of_session(session, COOKIE) is None
    end_session(sqlite, COOKIE)
    with sqlite.writing() as session:
        assert key_of_session(session, COOKIE) is None
        later = text("update browser_sessions set expires_at = expires_at - :seconds")
        session.execute(later, {"seconds": SESSION_SECONDS + 1})
        assert token_proof_of_session(session, OTHER) is None
    begin_session(sqlite, COOKIE, key_id=made.id)
    with sqlite.reading() as session:
        assert len(session.scalars(select(BrowserSessionRow)).all()) == 1, (
            "the old one is forgotten"
        )
        assert session.get(ApiKeyRow, made.id) is not None
