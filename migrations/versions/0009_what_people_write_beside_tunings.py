"""what people write beside tunings"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    for name in ("tags", "note"):
        op.add_column("tunings", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    op.add_column(
        "tunings",
        sa.Column("archived", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    with op.batch_alter_table("tunings") as tunings:
        for name in ("archived", "note", "tags"):
            tunings.drop_column(name)
