"""Tables of a tuning: what is asked and how far it is, its events, its answer."""

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from autosync.api.db.clock import now_seconds
from autosync.api.db.table_base import Base, Hash, RowNumber

STATES = (
    *("queued", "running", "pausing", "paused", "cancelling"),
    *("finished", "failed", "cancelled"),
)
ACTIVE = ("running", "pausing", "cancelling")
WAITING = ("queued", "paused")
"""No worker has them."""
FINAL = ("finished", "failed", "cancelled")


class TuningRow(Base):
    """A tuning: what is asked, who works on it under which lease, how far it is.

    fence: counts claims; a worker may write only under the number of its own claim.
    lease_until: by the database's clock; after it anyone may take the tuning over.
    simulator_version: which version of the trained simulator `simulator` stood for when it was
        asked for; 0 is the bundled one, NULL where it names no trained one.
    client: who asked; empty where it was no request over HTTP. idempotency_key: of that request,
        with the digest of what it asked for.
    held_seconds: how long workers have had it; limit_seconds: the most, NULL where there is none.
    earlier: what another tuning measured, as `EarlierTrials`; NULL where it begins anew.
    ran_on: where its trials ran, in the launchers' words, in the order of their first trials.
    tags: words between spaces. archived: left out of lists unless asked for.
    hosts: a digest of those that its trials run on, where they are real ones: one tuning of them
        runs at a time. Empty where trials run on the worker's machine, which has a lock of its own.
    """

    __tablename__ = "tunings"
    __table_args__ = (
        CheckConstraint(f"state in {STATES}", name="state"),
        Index(None, "hosts", "state"),
        Index(None, "state", "created_at"),
        Index("ix_tunings_client_idempotency_key", "client", "idempotency_key", unique=True),
        Index(None, "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(Hash, primary_key=True)
    domain_id: Mapped[str] = mapped_column(ForeignKey("domains.id"), index=True)
    state: Mapped[str] = mapped_column(String(16), default="queued")
    launcher: Mapped[str] = mapped_column(String(32))
    byte_scale: Mapped[float]
    time_scale: Mapped[float]
    compute: Mapped[str] = mapped_column(String(16), default="waited")
    compute_device: Mapped[str] = mapped_column(String(16), default="cpu")
    simulator: Mapped[str] = mapped_column(String(32))
    simulator_version: Mapped[int | None]
    settings: Mapped[str]
    space: Mapped[str]
    client: Mapped[str] = mapped_column(String(80), default="")
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    request_digest: Mapped[str | None] = mapped_column(Hash)
    limit_seconds: Mapped[float | None]
    held_seconds: Mapped[float] = mapped_column(default=0.0)
    earlier: Mapped[str | None] = mapped_column(deferred=True)
    created_at: Mapped[float] = mapped_column(default=now_seconds())
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    worker: Mapped[str | None]
    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    lease_until: Mapped[float | None]
    phase: Mapped[str] = mapped_column(String(16), default="waiting")
    message: Mapped[str] = mapped_column(default="")
    done: Mapped[int] = mapped_column(default=0)
    total: Mapped[int] = mapped_column(default=0)
    ranked: Mapped[int] = mapped_column(BigInteger, default=0)
    best_seconds: Mapped[float | None]
    ran_on: Mapped[list[str]] = mapped_column(JSON, default=list)
    error: Mapped[str | None]
    tags: Mapped[str] = mapped_column(default="")
    note: Mapped[str] = mapped_column(default="")
    archived: Mapped[bool] = mapped_column(default=False)
    hosts: Mapped[str] = mapped_column(Hash, default="")


class OutcomeRow(Base):
    """The answer of a tuning; `bundle` is the document that is shipped.

    baseline: the design that speed-ups are over, by its name. ddp_seconds: NULL where DDP ran out
        of memory; another design is the baseline then.
    limit_seconds: no strategy iterates in fewer; NULL where the answer is older than this column.
    """

    __tablename__ = "outcomes"

    tuning_id: Mapped[str] = mapped_column(ForeignKey("tunings.id"), primary_key=True)
    strategy_hash: Mapped[str] = mapped_column(ForeignKey("strategies.hash"))
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
    tuning_id: Mapped[str] = mapped_column(ForeignKey("tunings.id"))
    kind: Mapped[str] = mapped_column(String(16))
    message: Mapped[str]
    done: Mapped[int]
    total: Mapped[int]
    best_seconds: Mapped[float | None]
    created_at: Mapped[float] = mapped_column(default=now_seconds())
