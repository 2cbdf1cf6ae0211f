"""trained simulators"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "simulators",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("feature_version", sa.Integer(), nullable=False),
        sa.Column("domains", sa.Integer(), nullable=False),
        sa.Column("trials", sa.BigInteger(), nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("unseen", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("weights", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_simulators"),
    )


def downgrade() -> None:
    op.drop_table("simulators")
