"""what trials recorded: bytes sent, and the measured timeline"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("sent_bytes", sa.JSON(), nullable=True))
    op.add_column("trials", sa.Column("timeline", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("trials") as trials:
        trials.drop_column("timeline")
        trials.drop_column("sent_bytes")
