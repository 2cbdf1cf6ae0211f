"""paused tunings, and the hosts of those that run on real ones"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

BEFORE = ("queued", "running", "cancelling", "finished", "failed", "cancelled")
STATES = (
    *("queued", "running", "pausing", "paused", "cancelling"),
    *("finished", "failed", "cancelled"),
)

FIRST, NOW = "ck_tunings_ck_tunings_state", "ck_tunings_state"
"""Names of the constraint: the first migration's went through the naming convention once more."""


def upgrade() -> None:
    _allow(STATES, FIRST, NOW)
    op.add_column("tunings", sa.Column("hosts", sa.String(32), nullable=False, server_default=""))
    op.create_index("ix_tunings_hosts_state", "tunings", ["hosts", "state"])


def downgrade() -> None:
    op.drop_index("ix_tunings_hosts_state", "tunings")
    op.execute("UPDATE tunings SET state = 'queued' WHERE state IN ('pausing', 'paused')")
    with op.batch_alter_table("tunings") as tunings:
        tunings.drop_column("hosts")
    _allow(BEFORE, NOW, FIRST)


def _allow(states: tuple[str, ...], old: str, new: str) -> None:
    with op.batch_alter_table("tunings") as tunings:
        tunings.drop_constraint(op.f(old), type_="check")
        tunings.create_check_constraint(op.f(new), f"state in {states}")
