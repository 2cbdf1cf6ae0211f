"""how many batches an update of a domain adds up"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    one = sa.Column("accumulate", sa.Integer(), nullable=False, server_default="1")
    with op.batch_alter_table("domains") as domains:
        domains.add_column(one)
    with op.batch_alter_table("domains") as domains:
        domains.alter_column("accumulate", existing_type=sa.Integer(), server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("domains") as domains:
        domains.drop_column("accumulate")
