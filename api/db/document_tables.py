"""Tables of documents: graphs, clusters, domains, strategies, trained simulators.

Documents are canonical JSON under the hash of their content. They are megabytes, so a row is read
without its document until that is asked for.
"""

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from autosync.api.db.database import now_seconds

Hash = String(32)
"""32 hex digits; see `autosync.documents.content_hash`."""
RowNumber = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only where the type is spelled INTEGER."""


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {float: Double, str: Text}  # noqa: RUF012  # as SQLAlchemy reads it


class GraphRow(Base):
    """bundled: it came with AutoSync and nobody posted it; lists of what is posted leave it out."""

    __tablename__ = "graphs"
    __table_args__ = (Index(None, "created_at", "id"),)

    id: Mapped[str] = mapped_column(Hash, primary_key=True)
    name: Mapped[str]
    batch_size: Mapped[int] = mapped_column(BigInteger)
    variables: Mapped[int]
    parameters: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    bundled: Mapped[bool]
    document: Mapped[str] = mapped_column(deferred=True)
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class ClusterRow(Base):
    """What somebody posted or named. bundled: as of graphs. What a probe finds of a cluster is a
    part of domains (`DomainRow.cluster`)."""

    __tablename__ = "clusters"
    __table_args__ = (Index(None, "created_at", "id"),)

    id: Mapped[str] = mapped_column(Hash, primary_key=True)
    name: Mapped[str]
    nodes: Mapped[int]
    world_size: Mapped[int]
    bundled: Mapped[bool]
    document: Mapped[str] = mapped_column(deferred=True)
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class DomainRow(Base):
    """A domain without its graph, which has a row of its own.

    cluster: the document, with the costs that were measured where a tuning probed. accumulate:
    batches of an update.
    """

    __tablename__ = "domains"
    __table_args__ = (Index(None, "created_at", "id"),)

    id: Mapped[str] = mapped_column(Hash, primary_key=True)
    graph_id: Mapped[str] = mapped_column(ForeignKey("graphs.id"), index=True)
    cluster: Mapped[str] = mapped_column(deferred=True)
    profile: Mapped[str] = mapped_column(deferred=True)
    profile_source: Mapped[str] = mapped_column(String(16))
    optimizer: Mapped[str]
    accumulate: Mapped[int]
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class StrategyRow(Base):
    """hash: of the document as it is; strategy_id: equal where only names differ.

    words: the strategy in one line, so that a table needs no documents.
    """

    __tablename__ = "strategies"
    __table_args__ = (Index(None, "created_at", "hash"),)

    hash: Mapped[str] = mapped_column(Hash, primary_key=True)
    strategy_id: Mapped[str] = mapped_column(Hash, index=True)
    shards: Mapped[int]
    words: Mapped[str]
    document: Mapped[str] = mapped_column(deferred=True)
    created_at: Mapped[float] = mapped_column(default=now_seconds())


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
    training_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), unique=True)
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
