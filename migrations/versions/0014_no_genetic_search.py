"""settings of tunings without the share of the genetic search, which is gone"""

import json
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

GONE = "genetic_share"


def upgrade() -> None:
    tunings = sa.table("tunings", sa.column("id"), sa.column("settings"))
    connection = op.get_bind()
    for row in connection.execute(sa.select(tunings.c.id, tunings.c.settings)).all():
        settings = json.loads(row.settings)
        if GONE in settings:
            del settings[GONE]
            text = json.dumps(settings, separators=(",", ":"))
            connection.execute(
                sa.update(tunings).where(tunings.c.id == row.id).values(settings=text)
            )


def downgrade() -> None:
    """Earlier versions take what is absent to be 0."""
