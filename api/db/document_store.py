"""Documents in the database: stored once under the hash of their content."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from autosync.api.db.lookup import stored
from autosync.api.db.parsed_documents import ParsedDocuments
from autosync.api.db.tables import Base, ClusterRow, DomainRow, GraphRow, StrategyRow
from autosync.bundled_data import data_file
from autosync.cluster import Cluster
from autosync.cluster.cluster_file import bundled_clusters
from autosync.cluster.cluster_file import load_cluster as load_cluster_file
from autosync.documents import LARGEST_COUNT, from_json, text_hash, to_json
from autosync.domain import Domain, Optimizer, Profile
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.models import BUNDLED, bundled
from autosync.strategy import Strategy
from autosync.strategy_description import describe

MOST_RANKS = 2**15
"""Of a cluster: populations number servers in 16 bits."""
LONGEST_NAME = 200
_PARSED = ParsedDocuments()


def insert_new(session: Session, table: type[Base], **values: Any) -> bool:
    """Insert a row unless its key (or another unique value) is there; whether it was new."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).values(**values).on_conflict_do_nothing()
    first_key = next(iter(table.__table__.primary_key))
    return session.execute(statement.returning(first_key)).first() is not None


def insert_or_lock(session: Session, table: type[Base], **values: Any) -> bool:
    """Insert a row, or lock the one that has its key, so that nobody removes it before the end of
    the transaction; whether it was new."""
    first_key = next(iter(table.__table__.primary_key))
    if insert_new(session, table, **values):
        return True
    there = select(first_key).where(first_key == values[first_key.name])
    if session.execute(there.with_for_update(read=True, key_share=True)).first() is None:
        # it was removed since
        return insert_or_lock(session, table, **values)
    return False


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A row to be: making it takes long where the document is large, storing it does not."""

    table: type[Base]
    columns: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.columns["id"])


def graph_row(graph: ModelGraph) -> DocumentRow:
    """Raises InvalidInput where no table could hold or show it."""
    check_name("graph", graph.name)
    sizes = (graph.batch_size, graph.parameters, graph.size_bytes)
    flops = (f for o in graph.operations for f in (o.forward_flops, o.backward_flops))
    for what, value in (("size", max(sizes)), ("operation", max(flops, default=0))):
        if value > LARGEST_COUNT:
            # a whole number of hundreds of digits is no float
            shown = f"{value:.3g}" if value < 1e300 else "over 1e300"
            raise InvalidInput(
                f"graph {graph.name!r} has a {what} of {shown}, which no model has.",
                thing="graph",
                value=shown,
                remedy="Import the module again with `autosync import`.",
            )
    document = to_json(graph)
    columns = {
        "id": text_hash(document),
        "bundled": _is_bundled_graph(graph),
        "name": graph.name,
        "batch_size": graph.batch_size,
        "variables": len(graph.variables),
        "parameters": graph.parameters,
        "size_bytes": graph.size_bytes,
        "document": document,
    }
    return DocumentRow(GraphRow, columns)


def cluster_row(cluster: Cluster) -> DocumentRow:
    """Raises InvalidInput where no table could hold or show it."""
    check_name("cluster", cluster.name)
    if cluster.world_size > MOST_RANKS:
        raise InvalidInput(
            f"cluster {cluster.name!r} has {cluster.world_size} devices.",
            thing="cluster",
            value=cluster.world_size,
            remedy=f"At most {MOST_RANKS} are supported.",
        )
    document = to_json(cluster)
    columns = {
        "id": text_hash(document),
        "bundled": _is_bundled_cluster(cluster),
        "name": cluster.name,
        "nodes": len(cluster.nodes),
        "world_size": cluster.world_size,
        "document": document,
    }
    return DocumentRow(ClusterRow, columns)


def domain_rows(domain: Domain) -> tuple[DocumentRow, ...]:
    """Its graph, then the domain itself, which has its cluster; raises as `graph_row`."""
    graph = graph_row(domain.graph)
    columns = {
        "id": domain.id,
        "graph_id": graph.id,
        "cluster": to_json(domain.cluster),
        "profile": to_json(domain.profile),
        "profile_source": domain.compute_source,
        "optimizer": to_json(domain.optimizer),
        "accumulate": domain.accumulate,
    }
    return graph, DocumentRow(DomainRow, columns)


def insert_rows(session: Session, rows: Iterable[DocumentRow]) -> bool:
    """Store them; whether the last one is new."""
    new = False
    for row in rows:
        new = insert_or_lock(session, row.table, **row.columns)
    return new


def store_strategy(session: Session, strategy: Strategy, domain: Domain) -> str:
    """The hash of the document as it is, name included: `load_strategies` gives back the same."""
    document = to_json(strategy)
    key = text_hash(document)
    insert_or_lock(
        session,
        StrategyRow,
        hash=key,
        strategy_id=strategy.id,
        shards=strategy.shards,
        words=describe(strategy, domain),
        document=document,
    )
    return key


def keep_parsed(most_bytes: int) -> None:
    """Let `load_graph` and `load_cluster` keep what they parse, of so many bytes of text. For a
    process that reads the same documents again and again."""
    _PARSED.most_bytes = most_bytes


def load_graph(session: Session, key: str) -> ModelGraph:
    return _PARSED.parsed(ModelGraph, key, lambda: stored(session, GraphRow, key, "graph").document)


def load_cluster(session: Session, key: str) -> Cluster:
    return _PARSED.parsed(
        Cluster, key, lambda: stored(session, ClusterRow, key, "cluster").document
    )


def load_domain(session: Session, key: str) -> Domain:
    row = stored(session, DomainRow, key, "domain")
    return Domain(
        graph=load_graph(session, row.graph_id),
        cluster=from_json(Cluster, row.cluster),
        profile=from_json(Profile, row.profile),
        optimizer=from_json(Optimizer, row.optimizer),
        accumulate=row.accumulate,
    )


def load_strategies(session: Session, hashes: set[str]) -> dict[str, Strategy]:
    """The strategies by the hash of their documents."""
    rows = session.execute(
        select(StrategyRow.hash, StrategyRow.document).where(StrategyRow.hash.in_(hashes))
    )
    return {key: from_json(Strategy, document) for key, document in rows}


def check_name(thing: str, name: str) -> None:
    """Refuses names that a table or a terminal could not show."""
    if not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        raise InvalidInput(
            f"the {thing}'s name is {name[:40]!r}; it must be 1 to {LONGEST_NAME} printable "
            "characters.",
            thing=f"{thing}.name",
            value=name[:40],
        )


def _is_bundled_graph(graph: ModelGraph) -> bool:
    """Whether it is the graph of a bundled model, at whatever batch size."""
    if graph.name not in BUNDLED:
        return False
    try:
        return graph == bundled(graph.name, graph.batch_size)
    except InvalidInput:  # the model has no such batch size
        return False


def _is_bundled_cluster(cluster: Cluster) -> bool:
    if cluster.name not in bundled_clusters():
        return False
    return cluster == load_cluster_file(data_file("clusters", f"{cluster.name}.yaml"))
