"""keys of workers, which take tunings over REST and may do nothing else"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

SCOPE = "scope in ('read', 'tune', 'admin')"
SCOPE_NOW = "scope in ('read', 'tune', 'worker', 'admin')"


def upgrade() -> None:
    _set_scopes(SCOPE_NOW)


def downgrade() -> None:
    # a worker's key must not become one that reads: it lets nobody in any more
    op.execute(
        sa.text(
            "UPDATE api_keys SET scope = 'read', revoked_at = coalesce(revoked_at, created_at) "
            "WHERE scope = 'worker'"
        )
    )
    _set_scopes(SCOPE)


def _set_scopes(condition: str) -> None:
    # databases from before the first release know it by a longer name
    (known,) = sa.inspect(op.get_bind()).get_check_constraints("api_keys")
    with op.batch_alter_table("api_keys") as keys:
        keys.drop_constraint(op.f(str(known["name"])), type_="check")
        keys.create_check_constraint(op.f("ck_api_keys_scope"), condition)
