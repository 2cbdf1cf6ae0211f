"""the limit beside an answer"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("outcomes", sa.Column("limit_seconds", sa.Double(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("outcomes") as outcomes:
        outcomes.drop_column("limit_seconds")
