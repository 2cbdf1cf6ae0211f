"""Stores what is posted, within the operator's limits. Large documents get here in a process of
their own (`autosync.api.http.heavy_requests`)."""

import hashlib
from dataclasses import dataclass

from autosync.api.db.database import Database
from autosync.api.db.document_store import DocumentRow, cluster_row, graph_row, insert_rows
from autosync.api.engine.service_limits import (
    ServiceLimits,
    check_cluster,
    check_graph,
    check_size,
)
from autosync.api.engine.submission import Submission, enqueue, submitted_before
from autosync.api.http.collective_tables import Calibrated, calibrated
from autosync.api.http.named_documents import cluster_named, tuning_request
from autosync.api.spec import TuningSpec
from autosync.cluster.cluster_file import parse_cluster
from autosync.documents import from_json
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.interop.nccl_tests import Stated, read_nccl_tests
from autosync.units import MIB


@dataclass(frozen=True, slots=True)
class StoredRow:
    """new: it was not there before."""

    id: str
    name: str
    new: bool


def store_graph(database: Database, body: bytes, limits: ServiceLimits) -> StoredRow:
    """Raises InvalidInput where it is no graph, or larger than the operator allows."""
    check_size("graph", body, limits)
    graph = from_json(ModelGraph, body, source="graph")
    check_graph(graph, limits)
    return _stored(database, graph_row(graph))


def store_cluster(database: Database, body: bytes, limits: ServiceLimits) -> StoredRow:
    """Raises InvalidInput where it is no cluster, or larger than the operator allows."""
    check_size("cluster", body, limits)
    cluster = parse_cluster(_text(body), "cluster", limits.cluster_mib * MIB)
    check_cluster(cluster, limits)
    return _stored(database, cluster_row(cluster))


def store_calibrated(
    database: Database, cluster: str, log: bytes, stated: Stated, limits: ServiceLimits
) -> tuple[StoredRow, Calibrated]:
    """cluster: an id or the name of a bundled one. log: of nccl-tests, parsed as text.

    Raises:
        NotFound: no such cluster. InvalidInput: the log is none, disagrees with itself, or does not
            say what is not stated; or it is larger than the operator allows.
        NotSupported: the cluster is not on NCCL.
    """
    check_size("cluster", log, limits)
    with database.reading() as session:
        at = cluster_named(session, cluster)
    found = calibrated(at, read_nccl_tests(log.decode("utf-8", "replace"), "log", stated))
    return _stored(database, cluster_row(found.cluster)), found


def start_tuning(
    database: Database, body: bytes, client: str, idempotency_key: str | None, limits: ServiceLimits
) -> str:
    """The id of the tuning, queued; of the one that was queued before under this key.

    Raises:
        InvalidInput, NotFound, NotSupported, TryLater: as `tuning_request` and `enqueue`.
    """
    asked = read_tuning(body)
    submission = Submission(client, limits, idempotency_key, _digest(asked))
    with database.reading() as session:
        if (before := submitted_before(session, submission)) is not None:
            return before
    return enqueue(database, tuning_request(database, asked), submission)


def read_tuning(body: bytes) -> TuningSpec:
    """Raises InvalidInput; names the field, its value and what was expected."""
    return from_json(TuningSpec, body, "body", "GET /docs shows what this request takes.")


def _stored(database: Database, row: DocumentRow) -> StoredRow:
    with database.writing() as session:
        new = insert_rows(session, (row,))
    return StoredRow(row.id, str(row.columns["name"]), new)


def _digest(asked: TuningSpec) -> str:
    """Equal for bodies that ask for the same in other words, or in another order."""
    return hashlib.sha256(asked.model_dump_json(exclude_unset=True).encode()).hexdigest()[:32]


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the body is no UTF-8 text: {error.reason} at byte {error.start}.",
            thing="body",
            remedy="Send the cluster as YAML or JSON.",
        ) from None
