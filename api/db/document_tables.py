"""Tables of documents: graphs, clusters, domains, strategies."""

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from autosync.api.db.clock import now_seconds
from autosync.api.db.table_base import Base, Hash


class GraphRow(Base):
    __tablename__ = "graphs"
    __table_args__ = (Index(None, "created_at", "id"),)

    id: Mapped[str] = mapped_column(Hash, primary_key=True)
    name: Mapped[str]
    batch_size: Mapped[int] = mapped_column(BigInteger)
    variables: Mapped[int]
    parameters: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    document: Mapped[str] = mapped_column(deferred=True)
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class ClusterRow(Base):
    __tablename__ = "clusters"
    __table_args__ = (Index(None, "created_at", "id"),)

    id: Mapped[str] = mapped_column(Hash, primary_key=True)
    name: Mapped[str]
    nodes: Mapped[int]
    world_size: Mapped[int]
    document: Mapped[str] = mapped_column(deferred=True)
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class DomainRow(Base):
    """A domain without its graph and cluster, which have rows of their own."""

    __tablename__ = "domains"

    id: Mapped[str] = mapped_column(Hash, primary_key=True)
    graph_id: Mapped[str] = mapped_column(ForeignKey("graphs.id"), index=True)
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"), index=True)
    profile: Mapped[str] = mapped_column(deferred=True)
    profile_source: Mapped[str] = mapped_column(String(16))
    optimizer: Mapped[str]
    created_at: Mapped[float] = mapped_column(default=now_seconds())


class StrategyRow(Base):
    """hash: of the document as it is; strategy_id: equal where only names differ.

    words: the strategy in one line, so that a table needs no documents.
    """

    __tablename__ = "strategies"

    hash: Mapped[str] = mapped_column(Hash, primary_key=True)
    strategy_id: Mapped[str] = mapped_column(Hash, index=True)
    shards: Mapped[int]
    words: Mapped[str]
    document: Mapped[str] = mapped_column(deferred=True)
    created_at: Mapped[float] = mapped_column(default=now_seconds())
