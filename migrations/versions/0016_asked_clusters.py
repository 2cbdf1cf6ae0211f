"""a tuning's cluster is what was asked for; what was measured of it belongs to its domain"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

MEASURING = "measuring what messages cost"
"""The event of a tuning that measured its cluster's costs."""
MEASURED = ("costs", "link_seconds_per_send")
"""Fields of a cluster that this changed."""
KIND = "kind = 'training' or domain_id is not null"
KIND_NOW = "kind = 'training' or (domain_id is not null and cluster_id is not null)"


def upgrade() -> None:
    for table in ("graphs", "clusters"):
        with op.batch_alter_table(table) as rows:
            rows.add_column(sa.Column("bundled", sa.Boolean(), nullable=False, server_default="0"))
        with op.batch_alter_table(table) as rows:
            rows.alter_column("bundled", existing_type=sa.Boolean(), server_default=None)
    with op.batch_alter_table("domains") as domains:
        domains.add_column(sa.Column("cluster", sa.Text(), nullable=True))
    op.execute(
        "UPDATE domains SET cluster = "
        "(SELECT document FROM clusters WHERE clusters.id = domains.cluster_id)"
    )
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("cluster_id", sa.String(32), nullable=True))
    op.execute(
        "UPDATE jobs SET cluster_id = "
        "(SELECT cluster_id FROM domains WHERE domains.id = jobs.domain_id)"
    )
    with op.batch_alter_table("domains") as domains:
        domains.drop_constraint("fk_domains_cluster_id_clusters", type_="foreignkey")
        domains.drop_index("ix_domains_cluster_id")
        domains.drop_column("cluster_id")
        domains.alter_column("cluster", existing_type=sa.Text(), nullable=False)
    _name_asked_clusters(op.get_bind())
    _mark_bundled(op.get_bind())
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_constraint(op.f("ck_jobs_kind"), type_="check")
        jobs.create_check_constraint(op.f("ck_jobs_kind"), KIND_NOW)
        jobs.create_foreign_key("fk_jobs_cluster_id_clusters", "clusters", ["cluster_id"], ["id"])
        jobs.create_index("ix_jobs_cluster_id", ["cluster_id"])


def downgrade() -> None:
    with op.batch_alter_table("domains") as domains:
        domains.add_column(sa.Column("cluster_id", sa.String(32), nullable=True))
    _store_clusters_of_domains(op.get_bind())
    with op.batch_alter_table("domains") as domains:
        domains.drop_column("cluster")
        domains.alter_column("cluster_id", existing_type=sa.String(32), nullable=False)
        domains.create_foreign_key(
            "fk_domains_cluster_id_clusters", "clusters", ["cluster_id"], ["id"]
        )
        domains.create_index("ix_domains_cluster_id", ["cluster_id"])
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_index("ix_jobs_cluster_id")
        jobs.drop_constraint("fk_jobs_cluster_id_clusters", type_="foreignkey")
        jobs.drop_constraint(op.f("ck_jobs_kind"), type_="check")
        jobs.create_check_constraint(op.f("ck_jobs_kind"), KIND)
        jobs.drop_column("cluster_id")
    for table in ("graphs", "clusters"):
        with op.batch_alter_table(table) as rows:
            rows.drop_column("bundled")


def _name_asked_clusters(connection: sa.Connection) -> None:
    """Tunings that measured costs refer to the newest cluster before these that lacks them; the
    measured ones, which nobody asked for, go."""
    rows = connection.execute(
        sa.text("SELECT id, document, created_at FROM clusters ORDER BY created_at DESC")
    ).all()
    asked: dict[str, list[tuple[str, float]]] = {}
    measured: dict[str, tuple[str, float]] = {}
    for row in rows:
        document = json.loads(row.document)
        family = json.dumps(
            {k: v for k, v in document.items() if k not in MEASURED}, sort_keys=True
        )
        if document["costs"]:
            measured[row.id] = (family, row.created_at)
        else:
            asked.setdefault(family, []).append((row.id, row.created_at))
    probed = connection.execute(
        sa.text(
            "SELECT id, cluster_id FROM jobs WHERE EXISTS (SELECT 1 FROM events "
            "WHERE events.tuning_id = jobs.id AND events.message = :message)"
        ),
        {"message": MEASURING},
    ).all()
    found: set[str] = set()
    for tuning in probed:
        family, until = measured.get(tuning.cluster_id, ("", 0.0))
        known = [key for key, created_at in asked.get(family, []) if created_at <= until]
        if known:
            found.add(tuning.cluster_id)
            _execute(
                connection,
                "UPDATE jobs SET cluster_id = :asked WHERE id = :id",
                asked=known[0],
                id=tuning.id,
            )
    for key in found:
        _execute(
            connection,
            "DELETE FROM clusters WHERE id = :id "
            "AND NOT EXISTS (SELECT 1 FROM jobs WHERE cluster_id = :id)",
            id=key,
        )


def _mark_bundled(connection: sa.Connection) -> None:
    """Rows that are equal to what comes with this version."""
    bundled = {"clusters": list(_bundled_clusters()), "graphs": list(_bundled_graphs(connection))}
    for table, keys in bundled.items():
        for key in keys:
            _execute(connection, f"UPDATE {table} SET bundled = true WHERE id = :id", id=key)


def _bundled_clusters() -> Iterator[str]:
    from autosync.cluster.cluster_file import bundled_clusters, load_cluster

    return (load_cluster(name).id for name in bundled_clusters())


def _bundled_graphs(connection: sa.Connection) -> Iterator[str]:
    from autosync.errors import InvalidInput
    from autosync.models import BUNDLED, bundled

    for row in connection.execute(sa.text("SELECT id, name, batch_size FROM graphs")).all():
        if row.name in BUNDLED:
            try:
                graph = bundled(row.name, row.batch_size)
            except InvalidInput:  # the model has no such batch size
                continue
            if graph.id == row.id:
                yield row.id


def _store_clusters_of_domains(connection: sa.Connection) -> None:
    domains = connection.execute(sa.text("SELECT id, cluster, created_at FROM domains")).all()
    for domain in domains:
        key = hashlib.sha256(domain.cluster.encode()).hexdigest()[:32]
        known = sa.text("SELECT 1 FROM clusters WHERE id = :id")
        if connection.execute(known, {"id": key}).first() is None:
            nodes = json.loads(domain.cluster)["nodes"]
            trained = [node for node in nodes if not node.get("server_only", False)]
            ranks = sum(each["count"] for node in trained for each in node["devices"])
            _execute(
                connection,
                "INSERT INTO clusters "
                "(id, name, nodes, world_size, document, created_at, bundled) VALUES "
                "(:id, :name, :nodes, :world_size, :document, :created_at, false)",
                id=key,
                name=json.loads(domain.cluster)["name"],
                nodes=len(nodes),
                world_size=ranks,
                document=domain.cluster,
                created_at=domain.created_at,
            )
        _execute(
            connection,
            "UPDATE domains SET cluster_id = :key WHERE id = :id",
            key=key,
            id=domain.id,
        )


def _execute(connection: sa.Connection, statement: str, **values: Any) -> None:
    connection.execute(sa.text(statement), values)
