"""what an earlier tuning measured, as knowledge of a new one"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("tunings", sa.Column("earlier", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("tunings") as tunings:
        tunings.drop_column("earlier")
