"""Tunings as somebody looks for them: by words, state, tag, model or cluster, sorted, a page at a
time."""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, SQLColumnExpression, func, select
from sqlalchemy.orm import Session

from autosync.api.db.tables import (
    STATES,
    ClusterRow,
    DomainRow,
    GraphRow,
    OutcomeRow,
    TuningRow,
)
from autosync.api.engine.job_queue import places
from autosync.api.engine.simulator_store import NAME_OF_VERSION
from autosync.api.views.caveats import Caveat, caveats_of
from autosync.api.views.reports import has_tag, tunings_of
from autosync.api.views.schemas import Tuning
from autosync.errors import InvalidInput


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


PAGE_SIZE = 25
MOST_TAGS = 200


@dataclass(frozen=True, slots=True)
class TuningFilter:
    """text: in the names of model or cluster, in the note, in a tag, or the beginning of an id.
    simulator: name of the trained one that ranked, `version-N` for a version. Empty fields take
    all. page: counted from 1."""

    text: str = ""
    state: str = ""
    tag: str = ""
    graph_id: str = ""
    cluster_id: str = ""
    simulator: str = ""
    archived: bool = False
    sort: str = NEWEST
    page: int = 1

    def __post_init__(self) -> None:
        for thing, value, known in (
            ("sort", self.sort, tuple(ORDERS)),
            ("state", self.state, ("", *STATES)),
        ):
            if value not in known:
                raise InvalidInput(
                    f"{thing} is {value[:40]!r}.",
                    thing=thing,
                    value=value[:40],
                    remedy=f"There are: {', '.join(filter(None, known))}.",
                )

    def at(self, page: int) -> "TuningFilter":
        return replace(self, page=page)

    def by(self, column: str) -> "TuningFilter":
        """What a click on the column's heading asks for."""
        return replace(self, sort=next_order(column, self.sort), page=1)

    def direction(self, column: str) -> str:
        return direction(column, self.sort)

    @property
    def narrows(self) -> bool:
        return replace(self, page=1, sort=NEWEST) != TuningFilter()


@dataclass(frozen=True, slots=True)
class TuningPage:
    """total: of all pages. places: in the queue, by the tuning's id. tags: all there are."""

    items: list[Tuning]
    total: int
    pages: int
    caveats: dict[str, tuple[Caveat, ...]]
    places: dict[str, int]
    tags: list[str]


def tuning_list(session: Session, wanted: TuningFilter) -> TuningPage:
    order = ORDERS[wanted.sort]
    total = session.scalar(_filtered(select(func.count()).select_from(TuningRow), wanted)) or 0
    query = _filtered(select(TuningRow.id), wanted, order.column)
    shown = query.order_by(*order.by, TuningRow.id).limit(PAGE_SIZE)
    ids = session.scalars(shown.offset((wanted.page - 1) * PAGE_SIZE)).all()
    items = tunings_of(session, ids)
    waiting = any(tuning.state == "queued" for tuning in items)
    return TuningPage(
        items=items,
        total=total,
        pages=max(1, -(-total // PAGE_SIZE)),
        caveats=caveats_of(items),
        places=places(session) if waiting else {},
        tags=_tags(session),
    )


def _filtered(query: Select[Any], wanted: TuningFilter, sorted_by: str = "") -> Select[Any]:
    """sorted_by: the column of an order. Tables are joined where they are asked for."""
    query = query.where(TuningRow.archived.is_(wanted.archived))
    if wanted.text or wanted.graph_id or wanted.cluster_id or sorted_by in ("model", "cluster"):
        query = (
            query.join(DomainRow, DomainRow.id == TuningRow.domain_id)
            .join(GraphRow, GraphRow.id == DomainRow.graph_id)
            .join(ClusterRow, ClusterRow.id == DomainRow.cluster_id)
        )
    if sorted_by == "speed-up":
        query = query.outerjoin(OutcomeRow, OutcomeRow.tuning_id == TuningRow.id)
    for column, value in (
        (TuningRow.state, wanted.state),
        (GraphRow.id, wanted.graph_id),
        (ClusterRow.id, wanted.cluster_id),
    ):
        if value:
            query = query.where(column == value)
    if wanted.simulator:
        query = query.where(_ranked_by(wanted.simulator))
    if wanted.tag:
        query = query.where(has_tag(wanted.tag))
    for word in wanted.text.replace("\0", " ").split():
        said = func.lower(
            GraphRow.name + " " + ClusterRow.name + " " + TuningRow.note + " " + TuningRow.tags
        )
        begins = TuningRow.id.startswith(word.lower(), autoescape=True)
        query = query.where(said.contains(word.lower(), autoescape=True) | begins)
    return query


def _ranked_by(simulator: str) -> ColumnElement[bool]:
    number = simulator.removeprefix(NAME_OF_VERSION.format(""))
    if number != simulator and number.isdecimal():
        return TuningRow.simulator_version == int(number)
    return TuningRow.simulator == simulator


def _tags(session: Session) -> list[str]:
    query = select(TuningRow.tags).where(TuningRow.tags != "").distinct().limit(MOST_TAGS)
    return sorted({tag for tags in session.scalars(query) for tag in tags.split()})
