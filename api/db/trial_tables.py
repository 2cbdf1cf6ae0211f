"""Tables of what a tuning tries: proposals, trials, and each strategy summed up."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from autosync.api.db.clock import now_seconds
from autosync.api.db.table_base import Base, Hash


class ProposalRow(Base):
    __tablename__ = "proposals"
    __table_args__ = (
        UniqueConstraint("tuning_id", "position"),
        Index(None, "tuning_id", "strategy_id"),
    )

    tuning_id: Mapped[str] = mapped_column(ForeignKey("tunings.id"), primary_key=True)
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

    tuning_id: Mapped[str] = mapped_column(ForeignKey("tunings.id"), primary_key=True)
    strategy_id: Mapped[str] = mapped_column(Hash, primary_key=True)
    strategy_hash: Mapped[str] = mapped_column(ForeignKey("strategies.hash"))
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
