"""versions of the trained simulator, and their trainings"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "simulator_trainings",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("tuning_id", sa.String(length=32), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state in ('queued', 'running', 'finished', 'failed')",
            name=op.f("ck_simulator_trainings_state"),
        ),
        sa.ForeignKeyConstraint(
            ["tuning_id"], ["tunings.id"], name="fk_simulator_trainings_tuning_id_tunings"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_simulator_trainings"),
    )
    op.create_index(
        "ix_simulator_trainings_state_created_at", "simulator_trainings", ["state", "created_at"]
    )
    op.create_table(
        "simulator_versions",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("simulator", sa.String(length=32), nullable=False),
        sa.Column("training_id", sa.String(length=32), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("parent_accuracy", sa.Double(), nullable=True),
        sa.Column("pick_accuracy", sa.Double(), nullable=True),
        sa.Column("parent_pick_accuracy", sa.Double(), nullable=True),
        sa.Column("unseen_accuracy", sa.Double(), nullable=True),
        sa.Column("promoted", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["simulator"], ["simulators.name"], name="fk_simulator_versions_simulator_simulators"
        ),
        sa.ForeignKeyConstraint(
            ["training_id"],
            ["simulator_trainings.id"],
            name="fk_simulator_versions_training_id_simulator_trainings",
        ),
        sa.PrimaryKeyConstraint("number", name="pk_simulator_versions"),
        sa.UniqueConstraint("training_id", name="uq_simulator_versions_training_id"),
    )
    op.create_table(
        "simulator_promotions",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=False,
        ),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_simulator_promotions"),
    )
    op.add_column("tunings", sa.Column("simulator_version", sa.Integer(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("tunings") as tunings:
        tunings.drop_column("simulator_version")
    op.drop_table("simulator_promotions")
    op.drop_table("simulator_versions")
    op.drop_index("ix_simulator_trainings_state_created_at", "simulator_trainings")
    op.drop_table("simulator_trainings")
    op.execute("DELETE FROM simulators WHERE name LIKE 'version-%'")
