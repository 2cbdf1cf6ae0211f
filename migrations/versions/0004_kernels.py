"""what stands for compute in a tuning's trials, and where"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

COLUMNS = (("compute", "waited"), ("compute_device", "cpu"))
"""With what all tunings before have been."""


def upgrade() -> None:
    for name, before in COLUMNS:
        kind = sa.String(length=16)
        op.add_column("tunings", sa.Column(name, kind, nullable=False, server_default=before))


def downgrade() -> None:
    with op.batch_alter_table("tunings") as tunings:
        for name, _ in reversed(COLUMNS):
            tunings.drop_column(name)
