"""Orders of the list of tunings: what a reader sorts it by, and which way."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import SQLColumnExpression

from autosync.api.db.tables import ClusterRow, GraphRow, OutcomeRow, TuningRow


@dataclass(frozen=True, slots=True)
class TuningOrder:
    """column: of the table. words: as a reader chooses it. falls: whether the largest come first.
    value: what is sorted by; of equal ones the newest first. may_lack: some have none, and come
    last either way.
    """

    column: str
    words: str
    falls: bool
    value: SQLColumnExpression[Any]
    may_lack: bool = False

    @property
    def by(self) -> tuple[SQLColumnExpression[Any], ...]:
        value = self.value.desc() if self.falls else self.value.asc()
        known_first = (self.value.is_(None),) if self.may_lack else ()  # else an index serves
        return *known_first, value, TuningRow.created_at.desc()


NEWEST = "newest"
ORDERS = {
    NEWEST: TuningOrder("started", "newest first", True, TuningRow.created_at),
    "oldest": TuningOrder("started", "oldest first", False, TuningRow.created_at),
    "speed-up": TuningOrder("speed-up", "most speed-up first", True, OutcomeRow.speedup, True),
    "-speed-up": TuningOrder("speed-up", "least speed-up first", False, OutcomeRow.speedup, True),
    "best": TuningOrder("best", "shortest step first", False, TuningRow.best_seconds, True),
    "-best": TuningOrder("best", "longest step first", True, TuningRow.best_seconds, True),
    "model": TuningOrder("model", "model, A to Z", False, GraphRow.name),
    "-model": TuningOrder("model", "model, Z to A", True, GraphRow.name),
    "cluster": TuningOrder("cluster", "cluster, A to Z", False, ClusterRow.name),
    "-cluster": TuningOrder("cluster", "cluster, Z to A", True, ClusterRow.name),
    "state": TuningOrder("state", "state, A to Z", False, TuningRow.state),
    "-state": TuningOrder("state", "state, Z to A", True, TuningRow.state),
}
"""By the name in an address; of each column the first is what a click on its heading asks for."""


def next_order(column: str, current: str) -> str:
    """What a click on the column's heading asks for: its first order, or the other one."""
    first, second = (name for name, order in ORDERS.items() if order.column == column)
    return second if current == first else first


def direction(column: str, current: str) -> str:
    """How the list is sorted by the column, as `aria-sort` says it."""
    order = ORDERS[current]
    if order.column != column:
        return "none"
    return "descending" if order.falls else "ascending"
