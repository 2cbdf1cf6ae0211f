"""keys, and browsers that logged in"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.CheckConstraint("scope in ('read', 'tune', 'admin')", name="ck_api_keys_scope"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_created_at_id", "api_keys", ["created_at", "id"])
    op.create_table(
        "browser_sessions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=True),
        sa.Column("token_proof", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "(key_id is null) <> (token_proof is null)", name="ck_browser_sessions_shown"
        ),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name="fk_browser_sessions_key_id_api_keys"
        ),
        sa.PrimaryKeyConstraint("digest", name="pk_browser_sessions"),
    )
    op.create_index("ix_browser_sessions_expires_at", "browser_sessions", ["expires_at"])


def downgrade() -> None:
    op.drop_table("browser_sessions")
    op.drop_table("api_keys")
