"""who asks for tunings, and how long workers have had each"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None
COLUMNS = ("client", "idempotency_key", "request_digest", "limit_seconds", "held_seconds")
KEYS = "ix_tunings_client_idempotency_key"


def upgrade() -> None:
    op.create_table(
        "clients",
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("served_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_clients"),
    )
    op.add_column(
        "tunings", sa.Column("client", sa.String(length=80), nullable=False, server_default="")
    )
    op.add_column("tunings", sa.Column("idempotency_key", sa.String(length=200), nullable=True))
    op.add_column("tunings", sa.Column("request_digest", sa.String(length=32), nullable=True))
    op.add_column("tunings", sa.Column("limit_seconds", sa.Double(), nullable=True))
    op.add_column(
        "tunings", sa.Column("held_seconds", sa.Double(), nullable=False, server_default="0")
    )
    op.create_index(KEYS, "tunings", ["client", "idempotency_key"], unique=True)


def downgrade() -> None:
    op.drop_index(KEYS, "tunings")
    with op.batch_alter_table("tunings") as tunings:
        for name in reversed(COLUMNS):
            tunings.drop_column(name)
    op.drop_table("clients")
