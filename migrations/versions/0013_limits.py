"""the limit beside an answer, and what it is compared with where DDP does not fit"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("outcomes") as outcomes:
        outcomes.add_column(sa.Column("limit_seconds", sa.Double(), nullable=True))
        outcomes.add_column(sa.Column("baseline", sa.Text(), nullable=False, server_default="ddp"))
        outcomes.alter_column("ddp_seconds", existing_type=sa.Double(), nullable=True)


def downgrade() -> None:
    op.execute("UPDATE outcomes SET ddp_seconds = 0 WHERE ddp_seconds IS NULL")
    with op.batch_alter_table("outcomes") as outcomes:
        outcomes.alter_column("ddp_seconds", existing_type=sa.Double(), nullable=False)
        outcomes.drop_column("baseline")
        outcomes.drop_column("limit_seconds")
