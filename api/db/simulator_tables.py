"""Tables of trained simulators: their trainings, versions, and which is in use."""

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from autosync.api.db.clock import now_seconds
from autosync.api.db.table_base import Base, Hash, RowNumber

TRAINING_STATES = ("queued", "running", "finished", "failed")


class SimulatorRow(Base):
    """A trained simulator: its card (JSON) and its tensors (safetensors), which never change.

    domains, trials: what it learned from. accuracy: NULL where nobody held strategies out.
    """

    __tablename__ = "simulators"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    feature_version: Mapped[int]
    domains: Mapped[int]
    trials: Mapped[int] = mapped_column(BigInteger)
    accuracy: Mapped[float | None]
    unseen: Mapped[str]
    size_bytes: Mapped[int]
    card: Mapped[str] = mapped_column(deferred=True)
    weights: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class SimulatorTrainingRow(Base):
    """A training of the next version: who works on it under which lease, as of a tuning.

    tuning_id: the tuning at whose end it began; NULL where somebody asked for it.
    """

    __tablename__ = "simulator_trainings"
    __table_args__ = (
        CheckConstraint(f"state in {TRAINING_STATES}", name="state"),
        Index(None, "state", "created_at"),
        Index(None, "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(Hash, primary_key=True)
    state: Mapped[str] = mapped_column(String(16), default="queued")
    tuning_id: Mapped[str | None] = mapped_column(ForeignKey("tunings.id"))
    seed: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[float] = mapped_column(default=now_seconds())
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    worker: Mapped[str | None]
    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    lease_until: Mapped[float | None]
    message: Mapped[str] = mapped_column(default="")
    error: Mapped[str | None]


class SimulatorVersionRow(Base):
    """A version of the trained simulator; its card and tensors are the simulator's of that name.

    parent: the version in use when it was trained; 0 is the bundled one. accuracy, pick_accuracy:
    shares of pairs ranked rightly, of strategies that no version learns from, and of those among
    them that a search picked; parent_...: the parent's, on the same. unseen_accuracy: of models
    that its like did not see. NULL where there were none. promoted: at its end.
    """

    __tablename__ = "simulator_versions"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    simulator: Mapped[str] = mapped_column(ForeignKey("simulators.name"))
    training_id: Mapped[str] = mapped_column(ForeignKey("simulator_trainings.id"), unique=True)
    parent: Mapped[int]
    accuracy: Mapped[float | None]
    parent_accuracy: Mapped[float | None]
    pick_accuracy: Mapped[float | None]
    parent_pick_accuracy: Mapped[float | None]
    unseen_accuracy: Mapped[float | None]
    promoted: Mapped[bool]
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class SimulatorPromotionRow(Base):
    """Which version is in use: that of the last row, or the bundled one where there is none."""

    __tablename__ = "simulator_promotions"

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True)
    number: Mapped[int]
    created_at: Mapped[float] = mapped_column(default=now_seconds())
