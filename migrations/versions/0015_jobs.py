"""tunings and trainings of simulators are jobs of one table"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

OF_TUNINGS = {
    "domain_id": sa.String(32),
    "launcher": sa.String(32),
    "byte_scale": sa.Double(),
    "time_scale": sa.Double(),
    "compute": sa.String(16),
    "compute_device": sa.String(16),
    "simulator": sa.String(32),
    "settings": sa.Text(),
    "space": sa.Text(),
}
"""Columns that a training has nothing for."""
STATES = (
    "state in ('queued', 'running', 'pausing', 'paused', 'cancelling', 'finished', 'failed', "
    "'cancelled')"
)
SHARED = (
    "id, state, created_at, started_at, finished_at, worker, fence, lease_until, message, error, "
    "tuning_id, seed"
)
OF_TRAININGS = {
    "kind": "training",
    "client": "",
    "hosts": "",
    "held_seconds": 0.0,
    "phase": "waiting",
    "done": 0,
    "total": 0,
    "ranked": 0,
    "ran_on": [],
    "tags": "",
    "note": "",
    "archived": False,
}
"""What columns without NULL say of a training."""
OF_KINDS = (["kind", "state", "created_at"], ["kind", "created_at", "id"])
OF_TUNINGS_ALONE = (["state", "created_at"], ["created_at", "id"])
"""Columns of indexes: with the kind in front, or without."""


def upgrade() -> None:
    _rename("tunings", "jobs")
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("kind", sa.String(16), nullable=False, server_default="tuning"))
        jobs.add_column(sa.Column("tuning_id", sa.String(32), nullable=True))
        jobs.add_column(sa.Column("seed", sa.BigInteger(), nullable=False, server_default="0"))
        for name, kind in OF_TUNINGS.items():
            jobs.alter_column(name, existing_type=kind, nullable=True)
        jobs.drop_constraint(op.f("ck_tunings_state"), type_="check")
        jobs.create_check_constraint(op.f("ck_jobs_state"), STATES)
        jobs.create_check_constraint(
            op.f("ck_jobs_kind"), "kind = 'training' or domain_id is not null"
        )
        jobs.create_foreign_key("fk_jobs_tuning_id_jobs", "jobs", ["tuning_id"], ["id"])
    with op.batch_alter_table("jobs") as jobs:
        jobs.alter_column("kind", existing_type=sa.String(16), server_default=None)
        jobs.alter_column("seed", existing_type=sa.BigInteger(), server_default=None)
    for columns in OF_KINDS:
        op.create_index(f"ix_jobs_{'_'.join(columns)}", "jobs", columns)
    trainings = op.get_bind().execute(sa.text(f"SELECT {SHARED} FROM simulator_trainings"))
    table = sa.Table("jobs", sa.MetaData(), autoload_with=op.get_bind())
    op.bulk_insert(table, [{**row, **OF_TRAININGS} for row in trainings.mappings()])
    _let_versions_refer_to("simulator_trainings", "jobs")
    op.drop_table("simulator_trainings")


def downgrade() -> None:
    op.create_table(
        "simulator_trainings",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("tuning_id", sa.String(32), sa.ForeignKey("jobs.id"), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
    )
    op.execute(
        f"INSERT INTO simulator_trainings ({SHARED}) SELECT {SHARED} FROM jobs "
        "WHERE kind = 'training'"
    )
    _let_versions_refer_to("jobs", "simulator_trainings")
    op.execute("DELETE FROM jobs WHERE kind = 'training'")
    for columns in OF_KINDS:
        op.drop_index(f"ix_jobs_{'_'.join(columns)}", "jobs")
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_constraint("fk_jobs_tuning_id_jobs", type_="foreignkey")
        jobs.drop_constraint(op.f("ck_jobs_kind"), type_="check")
        jobs.drop_constraint(op.f("ck_jobs_state"), type_="check")
        jobs.create_check_constraint(op.f("ck_tunings_state"), STATES)
        for name in ("kind", "tuning_id", "seed"):
            jobs.drop_column(name)
        for name, kind in OF_TUNINGS.items():
            jobs.alter_column(name, existing_type=kind, nullable=False)
    _rename("jobs", "tunings")


def _rename(before: str, after: str) -> None:
    """The table and its indexes; keys of other tables follow."""
    renamed = (["domain_id"], ["hosts", "state"], ["client", "idempotency_key"])
    alone = OF_TUNINGS_ALONE if before == "tunings" else ()
    for columns in (*renamed, *alone):
        op.drop_index(f"ix_{before}_{'_'.join(columns)}", before)
    op.rename_table(before, after)
    for columns in (*renamed, *(OF_TUNINGS_ALONE if after == "tunings" else ())):
        unique = "idempotency_key" in columns
        op.create_index(f"ix_{after}_{'_'.join(columns)}", after, columns, unique=unique)


def _let_versions_refer_to(before: str, after: str) -> None:
    key = "fk_simulator_versions_training_id_"
    with op.batch_alter_table("simulator_versions") as versions:
        versions.drop_constraint(key + before, type_="foreignkey")
        versions.create_foreign_key(key + after, after, ["training_id"], ["id"])
