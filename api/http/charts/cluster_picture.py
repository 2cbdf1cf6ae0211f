"""A cluster: its nodes with their devices, on the network that joins them."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from autosync.api.http.charts.axes import shortened
from autosync.api.http.charts.chart import Chart, Drawing, drawings
from autosync.api.http.charts.svg_elements import line, rectangle, text_at
from autosync.cluster import Cluster, Node

WIDTH, BOX, TALL = 760, 150, 96
MOST_DEVICES = 8


@dataclass(frozen=True, slots=True)
class _Alike:
    """Neighbours that differ in their address only, drawn as one box."""

    nodes: tuple[Node, ...]

    @property
    def one(self) -> Node:
        return self.nodes[0]


def cluster_picture(cluster: Cluster) -> Chart:
    groups = _alike(cluster)

    def draw(width: int) -> Drawing:
        in_row = max(1, width // (BOX + 16))
        parts: list[Markup] = []
        bottom = 0.0
        for place, group in enumerate(groups):
            x = (place % in_row) * (BOX + 16) + 4
            y = (place // in_row) * (TALL + 62) + 34
            parts += _box(group, x, y)
            bottom = y + TALL + 14
        for row in range(-(-len(groups) // in_row)):
            y = row * (TALL + 62) + 12
            last = min(len(groups) - row * in_row, in_row)
            parts.append(line(4, y, last * (BOX + 16) - 12, y, "network"))
        return Drawing(width, bottom, tuple(parts))

    words = f"{len(cluster.nodes)} nodes with {cluster.world_size} devices for replicas"
    return Chart(
        "cluster",
        "The cluster",
        "the thick line is the network between nodes; rates are of payload, in each direction",
        words,
        drawings(draw, words, WIDTH),
        ("Node", "Devices", "NIC", "Between its devices", "Latency"),
        tuple(
            (
                node.address,
                _devices(node),
                f"{node.bandwidth_gbps:g} Gbit/s",
                f"{node.intra_bandwidth_gbps:g} Gbit/s" if node.intra_bandwidth_gbps else "–",
                f"{node.latency_us:g} us",
            )
            for node in cluster.nodes
        ),
    )


def _alike(cluster: Cluster) -> list[_Alike]:
    """Every node on its own where they are few."""
    if len(cluster.nodes) <= 8:
        return [_Alike((node,)) for node in cluster.nodes]
    groups: list[list[Node]] = []
    for node in cluster.nodes:
        if groups and _kind(groups[-1][0]) == _kind(node):
            groups[-1].append(node)
        else:
            groups.append([node])
    return [_Alike(tuple(group)) for group in groups]


def _kind(node: Node) -> tuple[object, ...]:
    return (
        node.devices,
        node.bandwidth_gbps,
        node.intra_bandwidth_gbps,
        node.latency_us,
        node.server_only,
    )


def _devices(node: Node) -> str:
    words = ", ".join(
        f"{device.count} × {device.type}"
        + (f" ({device.slowdown:g}× slower)" if device.slowdown != 1 else "")
        for device in node.devices
    )
    return f"{words or 'none'}{', parameter servers only' if node.server_only else ''}"


def _box(group: _Alike, x: float, y: float) -> Sequence[Markup]:
    node, count = group.one, len(group.nodes)
    name = node.address if count == 1 else f"{count} nodes"
    tip = ", ".join(each.address for each in group.nodes[:20])
    middle = x + BOX / 2
    parts = [
        line(middle, y - 22, middle, y, "network-port"),
        text_at(f"{node.bandwidth_gbps:g} Gbit/s", middle + 5, y - 6, class_="rule-name"),
        rectangle(x, y, BOX, TALL, "node server" if node.server_only else "node", tip),
        text_at(shortened(name, BOX - 16), x + 10, y + 20, class_="row-name"),
    ]
    ranks = [device.type for device in node.devices for _ in range(device.count)]
    for place, kind in enumerate(ranks[:MOST_DEVICES]):
        left = x + 10 + (place % 4) * 33
        parts.append(rectangle(left, y + 30 + (place // 4) * 20, 28, 15, "device", kind))
    words = _devices(node) if node.devices else "servers only"
    parts.append(text_at(shortened(words, BOX - 16), x + 10, y + TALL - 9))
    return parts
