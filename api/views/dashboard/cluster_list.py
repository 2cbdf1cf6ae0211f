"""Clusters in a line each: nodes, devices and rates, grouped by the devices, and looked for.

Lines are read from the documents as plain JSON: to check a large cluster takes seconds.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.tables import ClusterRow
from autosync.api.views.dashboard.strategy_labels import remembered
from autosync.api.views.documents import CLUSTER_SORTS
from autosync.api.views.paging import sorted_page
from autosync.api.views.rankings import searched_words
from autosync.bundled_data import data_file
from autosync.cluster.cluster_file import bundled_clusters, load_cluster
from autosync.documents import to_json


@dataclass(frozen=True, slots=True)
class ClusterLine:
    """key: of its page, an id or a bundled name. devices: `8 × v100`, by type. rates: of the NICs
    of nodes, and between the devices of a node where that is stated. created_at: seconds since
    1970-01-01 UTC; None of bundled ones."""

    key: str
    name: str
    nodes: int
    world_size: int
    devices: str
    rates: str
    backend: str
    created_at: float | None = None

    def says(self, text: str) -> bool:
        """Whether all words are in its name, devices or rates."""
        said = f"{self.name} {self.devices} {self.rates} {self.backend}".lower()
        return all(word in said for word in searched_words(text))


@dataclass(frozen=True, slots=True)
class ClusterGroup:
    title: str
    lines: tuple[ClusterLine, ...]


_LINES: dict[str, ClusterLine] = {}


def stored_clusters(
    session: Session, limit: int, cursor: str | None = None, text: str = ""
) -> tuple[list[ClusterLine], str | None]:
    """A page of posted ones, the newest first, and the cursor of the next page.

    text: words in the name, or types of devices.

    Raises:
        InvalidInput: the cursor is of another list.
    """
    query = select(ClusterRow).where(ClusterRow.bundled.is_(False))
    for word in searched_words(text):
        device = ClusterRow.document.icontains(f'"type":"{word}', autoescape=True)
        query = query.where(ClusterRow.name.icontains(word, autoescape=True) | device)
    rows, following = sorted_page(
        session, query, CLUSTER_SORTS, "-created", ClusterRow.id, limit, cursor
    )
    return [_stored_line(row) for row, *_ in rows], following


def grouped_clusters(text: str = "") -> list[ClusterGroup]:
    """The bundled ones, by the devices that they have."""
    return _by_devices(line for line in _bundled_lines() if line.says(text))


def _stored_line(row: ClusterRow) -> ClusterLine:
    return remembered(
        _LINES, row.id, lambda: _line(row.id, json.loads(row.document), row.created_at)
    )


@cache
def _bundled_lines() -> tuple[ClusterLine, ...]:
    files = {name: data_file("clusters", f"{name}.yaml") for name in bundled_clusters()}
    return tuple(
        _line(name, json.loads(to_json(load_cluster(path)))) for name, path in files.items()
    )


def _by_devices(lines: Iterable[ClusterLine]) -> list[ClusterGroup]:
    groups: dict[str, list[ClusterLine]] = {}
    for line in lines:
        types = sorted({part.split(" × ")[1] for part in line.devices.split(", ")})
        groups.setdefault(" and ".join(types), []).append(line)
    return [
        ClusterGroup(title, tuple(sorted(mine, key=lambda line: (line.world_size, line.name))))
        for title, mine in sorted(groups.items())
    ]


def _line(key: str, document: dict[str, Any], created_at: float | None = None) -> ClusterLine:
    """document: a cluster's canonical JSON."""
    devices: Counter[str] = Counter()
    for node in document["nodes"]:
        for device in node.get("devices", ()):
            devices[device["type"]] += device.get("count", 1)
    return ClusterLine(
        key=key,
        name=document["name"],
        nodes=len(document["nodes"]),
        world_size=sum(devices.values()),
        devices=", ".join(f"{count} × {name}" for name, count in sorted(devices.items())),
        rates=_rates(document["nodes"]),
        backend=document.get("backend", ""),
        created_at=created_at,
    )


def _rates(nodes: list[dict[str, Any]]) -> str:
    words = [_span({node["bandwidth_gbps"] for node in nodes})]
    inside = {node["intra_bandwidth_gbps"] for node in nodes if node.get("intra_bandwidth_gbps")}
    if inside:
        words.append(f"{_span(inside)} inside nodes")
    return ", ".join(words)


def _span(rates: set[float]) -> str:
    low, high = min(rates), max(rates)
    return f"{low:g} Gbit/s" if low == high else f"{low:g} to {high:g} Gbit/s"
