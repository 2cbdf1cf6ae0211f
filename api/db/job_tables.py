"""Tables of jobs: who asks for them, who works on them, what came of them."""

from typing import Any, get_args

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from autosync.api.db.database import now_seconds
from autosync.api.db.document_tables import Base, Hash, RowNumber
from autosync.api.spec import KeyScope

SCOPES = get_args(KeyScope)
DIGEST = String(64)
"""Of SHA-256, in hex."""


class ClientRow(Base):
    """Who asks for tunings. served_at: when a worker last took one of theirs; 0: never."""

    __tablename__ = "clients"

    name: Mapped[str] = mapped_column(String(80), primary_key=True)
    served_at: Mapped[float] = mapped_column(default=0.0)


class ApiKeyRow(Base):
    """A key: `id.secret` (`autosync.api.engine.api_keys`). Keys of one name are of one client.

    digest: of the secret, which is kept nowhere. last_used_at: to some minutes; NULL: never.
    expires_at: NULL where it does not. A revoked key stays in the list.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint(f"scope in {SCOPES}", name="scope"),
        Index(None, "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    digest: Mapped[str] = mapped_column(DIGEST)
    name: Mapped[str] = mapped_column(String(40))
    scope: Mapped[str] = mapped_column(String(8))
    created_at: Mapped[float] = mapped_column(default=now_seconds())
    last_used_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class BrowserSessionRow(Base):
    """A browser that logged in, with a key or with a token of the service's operator.

    digest: of the browser's cookie. token_proof: see `api_keys.proof_of`.
    """

    __tablename__ = "browser_sessions"
    __table_args__ = (
        CheckConstraint("(key_id is null) <> (token_proof is null)", name="shown"),
        Index(None, "expires_at"),
    )

    digest: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    token_proof: Mapped[str | None] = mapped_column(DIGEST)
    created_at: Mapped[float] = mapped_column(default=now_seconds())
    expires_at: Mapped[float]


class WorkerRow(Base):
    """A worker of the queue. lives_until: by the database's clock; it renews it while it lives.

    gpus: of its machine.
    """

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    gpus: Mapped[int]
    started_at: Mapped[float] = mapped_column(default=now_seconds())
    lives_until: Mapped[float]


STATES = (
    *("queued", "running", "pausing", "paused", "cancelling"),
    *("finished", "failed", "cancelled"),
)
ACTIVE = ("running", "pausing", "cancelling")
WAITING = ("queued", "paused")
"""No worker has them."""
FINAL = ("finished", "failed", "cancelled")


class JobRow(Base):
    """What workers claim: a tuning or the training of a simulator (`kind`), who works on it under
    which lease, and how it ended.

    fence: counts claims; a worker may write only under the number of its own claim.
    lease_until: by the database's clock; after it anyone may take the job over.
    client: who asked; empty where it was no request over HTTP. idempotency_key: of that request,
        with the digest of what it asked for.
    held_seconds: how long workers have had it; limit_seconds: the most, NULL where there is none.
    hosts: a digest of those that it runs on, where they are real ones: one job of them runs at a
        time. Empty where it runs on the worker's machine, which has a lock of its own.

    Columns of one kind alone are NULL in rows of the other.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(f"state in {STATES}", name="state"),
        CheckConstraint(
            "kind = 'training' or (domain_id is not null and cluster_id is not null)", name="kind"
        ),
        Index(None, "hosts", "state"),
        Index(None, "kind", "state", "created_at"),
        Index("ix_jobs_client_idempotency_key", "client", "idempotency_key", unique=True),
        Index(None, "kind", "created_at", "id"),
    )
    __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012  # as SQLAlchemy reads it

    id: Mapped[str] = mapped_column(Hash, primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16), default="queued")
    client: Mapped[str] = mapped_column(String(80), default="")
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    request_digest: Mapped[str | None] = mapped_column(Hash)
    limit_seconds: Mapped[float | None]
    held_seconds: Mapped[float] = mapped_column(default=0.0)
    created_at: Mapped[float] = mapped_column(default=now_seconds())
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    worker: Mapped[str | None]
    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    lease_until: Mapped[float | None]
    hosts: Mapped[str] = mapped_column(Hash, default="")
    message: Mapped[str] = mapped_column(default="")
    error: Mapped[str | None]


class TuningRow(JobRow):
    """A tuning: what is asked, and how far it is.

    domain_id: with what was measured before the search. cluster_id: the cluster as it was asked
        for, so that tunings of one cluster are found by it.
    simulator_version: which version of the trained simulator `simulator` stood for when it was
        asked for; 0 is the bundled one, NULL where it names no trained one.
    earlier: what another tuning measured, as `EarlierTrials`; NULL where it begins anew.
    ran_on: where its trials ran, in the launchers' words, in the order of their first trials.
    tags: words between spaces. archived: left out of lists unless asked for.
    """

    __mapper_args__ = {"polymorphic_identity": "tuning"}  # noqa: RUF012

    domain_id: Mapped[str] = mapped_column(ForeignKey("domains.id"), index=True, nullable=True)
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"), index=True, nullable=True)
    launcher: Mapped[str] = mapped_column(String(32), nullable=True)
    byte_scale: Mapped[float] = mapped_column(nullable=True)
    time_scale: Mapped[float] = mapped_column(nullable=True)
    compute: Mapped[str] = mapped_column(String(16), nullable=True)
    compute_device: Mapped[str] = mapped_column(String(16), nullable=True)
    simulator: Mapped[str] = mapped_column(String(32), nullable=True)
    simulator_version: Mapped[int | None]
    settings: Mapped[str] = mapped_column(nullable=True)
    space: Mapped[str] = mapped_column(nullable=True)
    earlier: Mapped[str | None] = mapped_column(deferred=True)
    phase: Mapped[str] = mapped_column(String(16), default="waiting")
    done: Mapped[int] = mapped_column(default=0)
    total: Mapped[int] = mapped_column(default=0)
    ranked: Mapped[int] = mapped_column(BigInteger, default=0)
    best_seconds: Mapped[float | None]
    ran_on: Mapped[list[str]] = mapped_column(JSON, default=list)
    tags: Mapped[str] = mapped_column(default="")
    note: Mapped[str] = mapped_column(default="")
    archived: Mapped[bool] = mapped_column(default=False)


class SimulatorTrainingRow(JobRow):
    """A training of the next version of the simulator.

    tuning_id: the tuning at whose end it began; NULL where somebody asked for it.
    """

    __mapper_args__ = {"polymorphic_identity": "training"}  # noqa: RUF012

    tuning_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    seed: Mapped[int] = mapped_column(BigInteger, default=0)


class OutcomeRow(Base):
    """The answer of a tuning; `bundle` is the document that is shipped.

    baseline: the design that speed-ups are over, by its name. ddp_seconds: NULL where DDP ran out
        of memory; another design is the baseline then.
    limit_seconds: no strategy iterates in fewer; NULL where the answer is older than this column.
    """

    __tablename__ = "outcomes"

    tuning_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    strategy_hash: Mapped[str] = mapped_column(ForeignKey("strategies.hash"), index=True)
    best_seconds: Mapped[float]
    ddp_seconds: Mapped[float | None]
    baseline: Mapped[str] = mapped_column(server_default="ddp")
    speedup: Mapped[float]
    speedup_low: Mapped[float]
    speedup_high: Mapped[float]
    repeats: Mapped[int]
    keep_ddp: Mapped[bool]
    limit_seconds: Mapped[float | None]
    bundle: Mapped[str] = mapped_column(deferred=True)
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class EventRow(Base):
    """Progress of a tuning, in the order in which it happened."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "tuning_id", "id"),)

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True)
    tuning_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    kind: Mapped[str] = mapped_column(String(16))
    message: Mapped[str]
    done: Mapped[int]
    total: Mapped[int]
    best_seconds: Mapped[float | None]
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class ProposalRow(Base):
    __tablename__ = "proposals"
    __table_args__ = (
        UniqueConstraint("tuning_id", "position"),
        Index(None, "tuning_id", "strategy_id"),
    )

    tuning_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    position: Mapped[int]
    phase: Mapped[str] = mapped_column(String(16))
    round: Mapped[int]
    strategy_hash: Mapped[str] = mapped_column(ForeignKey("strategies.hash"), index=True)
    strategy_id: Mapped[str] = mapped_column(Hash)
    predicted_seconds: Mapped[float]
    simulator: Mapped[str]
    origin: Mapped[str]
    seed: Mapped[int] = mapped_column(BigInteger)
    index: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class TrialRow(Base):
    """A finished trial with everything that says where and how it was measured.

    sent_bytes: NULL in rows that are older than the column. timeline: a `MeasuredTimeline`
    document, where one was recorded.
    """

    __tablename__ = "trials"
    __table_args__ = (
        ForeignKeyConstraint(["tuning_id", "key"], ["proposals.tuning_id", "proposals.key"]),
        UniqueConstraint("tuning_id", "position"),
        Index(None, "created_at", "tuning_id", "position"),
        Index(None, "domain_id", "created_at", "tuning_id", "position"),
    )

    tuning_id: Mapped[str] = mapped_column(Hash, primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    position: Mapped[int]
    domain_id: Mapped[str] = mapped_column(ForeignKey("domains.id"))
    strategy_id: Mapped[str] = mapped_column(Hash, index=True)
    step_seconds: Mapped[float | None]
    spread: Mapped[float | None]
    iteration_seconds: Mapped[list[float]] = mapped_column(JSON)
    error_kind: Mapped[str | None] = mapped_column(String(32))
    error_message: Mapped[str | None]
    error_stderr: Mapped[str | None]
    launcher: Mapped[str]
    byte_scale: Mapped[float]
    time_scale: Mapped[float]
    load: Mapped[float | None]
    overhead_seconds: Mapped[float]
    peak_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    sent_bytes: Mapped[list[int] | None] = mapped_column(JSON(none_as_null=True))
    timeline: Mapped[str | None] = mapped_column(deferred=True)
    versions: Mapped[list[Any]] = mapped_column(JSON)
    fence: Mapped[int] = mapped_column(BigInteger)
    worker: Mapped[str | None]
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class StrategySummaryRow(Base):
    """A strategy of a tuning, summed up whenever it is proposed or tried (`strategy_summaries`),
    so that a page of the ranking reads its own rows alone.

    position: of its first proposal, which also says how it was predicted. step_seconds, spread: of
    the iterations that decide: the confirmation's where there are any, else all. sort_seconds:
    step_seconds, or infinite where there are none. search_seconds: median of the search's alone.
    """

    __tablename__ = "strategy_summaries"
    __table_args__ = (
        Index(None, "tuning_id", "sort_seconds", "origin", "position"),
        Index(None, "tuning_id", "origin", "position"),
    )

    tuning_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    strategy_id: Mapped[str] = mapped_column(Hash, primary_key=True)
    strategy_hash: Mapped[str] = mapped_column(ForeignKey("strategies.hash"), index=True)
    position: Mapped[int]
    origin: Mapped[str]
    simulator: Mapped[str]
    predicted_seconds: Mapped[float]
    step_seconds: Mapped[float | None]
    sort_seconds: Mapped[float]
    spread: Mapped[float | None]
    search_seconds: Mapped[float | None]
    confirmed: Mapped[bool]
    trials: Mapped[int]
    recorded: Mapped[bool]
    error: Mapped[str | None]
