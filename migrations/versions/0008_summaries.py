"""ranked strategies summed up, and indexes for lists and exports"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LISTED = ("graphs", "clusters", "simulator_trainings", "tunings")
"""Tables whose rows are listed, the newest first."""
TRIAL_INDEXES = (
    ("created_at", "tuning_id", "position"),
    ("domain_id", "created_at", "tuning_id", "position"),
)
SUMMARY_INDEXES = (
    ("tuning_id", "sort_seconds", "origin", "position"),
    ("tuning_id", "origin", "position"),
)

SUMMARIES: dict[str, tuple[Any, bool]] = {
    "tuning_id": (sa.String(length=32), False),
    "strategy_id": (sa.String(length=32), False),
    "strategy_hash": (sa.String(length=32), False),
    "position": (sa.Integer(), False),
    "origin": (sa.Text(), False),
    "simulator": (sa.Text(), False),
    "predicted_seconds": (sa.Double(), False),
    "step_seconds": (sa.Double(), True),
    "sort_seconds": (sa.Double(), False),
    "spread": (sa.Double(), True),
    "search_seconds": (sa.Double(), True),
    "confirmed": (sa.Boolean(), False),
    "trials": (sa.Integer(), False),
    "recorded": (sa.Boolean(), False),
    "error": (sa.Text(), True),
}
"""Type of each column, and whether it may be NULL."""
PROPOSED = (
    "strategy_id",
    "strategy_hash",
    "position",
    "phase",
    "origin",
    "simulator",
    "predicted_seconds",
)
TRIED = ("step_seconds", "iteration_seconds", "error_kind", "error_message", "launcher")


def upgrade() -> None:
    ran_on = sa.Column("ran_on", sa.JSON(), nullable=False, server_default=sa.text("'[]'"))
    op.add_column("tunings", ran_on)
    op.create_table(
        "strategy_summaries",
        *(sa.Column(name, kind, nullable=null) for name, (kind, null) in SUMMARIES.items()),
        sa.ForeignKeyConstraint(
            ["strategy_hash"],
            ["strategies.hash"],
            name="fk_strategy_summaries_strategy_hash_strategies",
        ),
        sa.ForeignKeyConstraint(
            ["tuning_id"], ["tunings.id"], name="fk_strategy_summaries_tuning_id_tunings"
        ),
        sa.PrimaryKeyConstraint("tuning_id", "strategy_id", name="pk_strategy_summaries"),
    )
    _sum_up(op.get_bind())
    op.drop_index("ix_trials_domain_id", "trials")
    for table, columns in _indexes():
        op.create_index(_name(table, columns), table, list(columns))


def downgrade() -> None:
    for table, columns in _indexes():
        op.drop_index(_name(table, columns), table)
    op.create_index("ix_trials_domain_id", "trials", ["domain_id"])
    op.drop_table("strategy_summaries")
    with op.batch_alter_table("tunings") as tunings:
        tunings.drop_column("ran_on")


def _indexes() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from ((table, ("created_at", "id")) for table in LISTED)
    yield from (("trials", columns) for columns in TRIAL_INDEXES)
    yield from (("strategy_summaries", columns) for columns in SUMMARY_INDEXES)
    yield "proposals", ("tuning_id", "strategy_id")


def _name(table: str, columns: tuple[str, ...]) -> str:
    return f"ix_{table}_{'_'.join(columns)}"


def _sum_up(connection: sa.Connection) -> None:
    """Of every tuning that is here already, one after another."""
    metadata = sa.MetaData()
    tunings, proposals, trials = (
        sa.Table(name, metadata, autoload_with=connection)
        for name in ("tunings", "proposals", "trials")
    )
    columns = (sa.column(name, kind) for name, (kind, _) in SUMMARIES.items())
    summaries = sa.table("strategy_summaries", *columns)
    ran_on_of = sa.table("tunings", sa.column("id"), sa.column("ran_on", sa.JSON))
    both = (trials.c.tuning_id == proposals.c.tuning_id) & (trials.c.key == proposals.c.key)
    read: list[Any] = [
        *(proposals.c[name] for name in PROPOSED),
        *(trials.c[name] for name in TRIED),
        trials.c.position.label("tried"),
        trials.c.timeline.is_not(None).label("recorded"),
    ]
    query = (
        sa.select(*read)
        .select_from(proposals.outerjoin(trials, both))
        .order_by(proposals.c.position)
    )
    for tuning_id in connection.scalars(sa.select(tunings.c.id)).all():
        rows = connection.execute(query.where(proposals.c.tuning_id == tuning_id)).all()
        by_strategy: dict[str, list[Any]] = {}
        for row in rows:
            by_strategy.setdefault(row.strategy_id, []).append(row)
        if by_strategy:
            found = [{"tuning_id": tuning_id, **_summary(of)} for of in by_strategy.values()]
            connection.execute(summaries.insert(), found)
        tried = sorted((row for row in rows if row.tried is not None), key=lambda row: row.tried)
        ran_on = list(dict.fromkeys(row.launcher for row in tried))
        connection.execute(
            ran_on_of.update().where(ran_on_of.c.id == tuning_id).values(ran_on=ran_on)
        )


def _summary(rows: list[Any]) -> dict[str, Any]:
    """rows: of one strategy, in the order of their proposals."""
    first = rows[0]
    tried = [row for row in rows if row.tried is not None]
    measured = [row for row in tried if row.step_seconds]
    confirming = [row for row in measured if row.phase == "confirm"]
    seconds = [second for row in confirming or measured for second in row.iteration_seconds]
    searched = [s for row in measured if row.phase == "search" for s in row.iteration_seconds]
    low, median, high = np.percentile(seconds, [10, 50, 90]) if seconds else (0.0, 0.0, 0.0)
    errors = [row for row in tried if row.error_kind is not None]
    return {
        "strategy_id": first.strategy_id,
        "strategy_hash": first.strategy_hash,
        "position": first.position,
        "origin": first.origin,
        "simulator": first.simulator,
        "predicted_seconds": first.predicted_seconds,
        "step_seconds": float(median) if seconds else None,
        "sort_seconds": float(median) if seconds else math.inf,
        "spread": float((high - low) / median) if seconds else None,
        "search_seconds": float(np.median(searched)) if searched else None,
        "confirmed": bool(confirming),
        "trials": len(tried),
        "recorded": any(row.recorded for row in tried),
        "error": f"{errors[0].error_kind}: {errors[0].error_message}" if errors else None,
    }
