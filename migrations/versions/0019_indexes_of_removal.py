"""what is removed is found by an index, and so is what refers to it"""

from collections.abc import Sequence

from alembic import op

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

INDEXES = (
    ("outcomes", ["strategy_hash"]),
    ("strategy_summaries", ["strategy_hash"]),
    ("jobs", ["tuning_id"]),
    ("strategies", ["created_at", "hash"]),
    ("domains", ["created_at", "id"]),
)
"""Tables and columns."""


def upgrade() -> None:
    for table, columns in INDEXES:
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)


def downgrade() -> None:
    for table, columns in INDEXES:
        op.drop_index(f"ix_{table}_{'_'.join(columns)}", table)
