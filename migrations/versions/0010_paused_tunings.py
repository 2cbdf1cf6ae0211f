"""paused tunings, and the hosts of those that run on real ones"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

BEFORE = ("queued", "running", "cancelling", "finished", "failed", "cancelled")
STATES = (
    *("queued", "running", "pausing", "paused", "cancelling"),
    *("finished", "failed", "cancelled"),
)


def upgrade() -> None:
    _allow(STATES)
    op.add_column("tunings", sa.Column("hosts", sa.String(32), nullable=False, server_default=""))
    op.create_index("ix_tunings_hosts_state", "tunings", ["hosts", "state"])


def downgrade() -> None:
    op.drop_index("ix_tunings_hosts_state", "tunings")
    op.execute("UPDATE tunings SET state = 'queued' WHERE state IN ('pausing', 'paused')")
    with op.batch_alter_table("tunings") as tunings:
        tunings.drop_column("hosts")
    _allow(BEFORE)


def _allow(states: tuple[str, ...]) -> None:
    """SQLite changes no constraint of a table: the table is made anew, and its own are stated."""
    check = sa.CheckConstraint(f"state in {states}", name="ck_tunings_state")
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table("tunings", recreate="always", table_args=(check,)):
            pass
        return
    op.drop_constraint("ck_tunings_state", "tunings", type_="check")
    op.create_check_constraint("ck_tunings_state", "tunings", f"state in {states}")
