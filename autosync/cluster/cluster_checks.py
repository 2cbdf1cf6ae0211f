"""What no cluster can be: the checks of its document, each with a refusal that names the node."""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

import numpy as np

from autosync.cluster.collective_curve import CollectiveCurve
from autosync.cluster.devices import DEVICE_TYPES
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.cluster.cluster_document import Link, MessageCost, Node

OPTIONAL_NUMBERS = {
    "overlap_slowdown": "State the share by which compute takes longer while messages are on the "
    "wire: 0.05 for 5 %, 0 for not at all.",
    "transfer_slowdown": "State the share by which transfers take longer while devices compute: "
    "0.5 for half as long again, 0 for not at all.",
    "connection_gbps": "State what one connection between two hosts reaches (`iperf3` without -P "
    "measures it), or leave it out.",
    "link_seconds_per_send": "State seconds, 1e-05 for 10 us; 0 where they are not known.",
}
"""Of a cluster, with what to do where one is impossible."""


def check_prices(name: str, nodes: Sequence["Node"], priced_on: str) -> None:
    """Raises InvalidInput for prices without their day, or a day without prices."""
    priced = any(node.usd_per_hour for node in nodes)
    try:
        dated = bool(priced_on) and bool(date.fromisoformat(priced_on))
    except ValueError:
        dated = not priced  # neither a date nor none
    if priced != dated:
        raise InvalidInput(
            f"cluster {name!r}: priced_on must be the day of its nodes' prices, and stand "
            f"with them only; got {priced_on!r}.",
            thing="priced_on",
            value=priced_on,
            remedy="Write it as 2026-01-31, or leave out both it and usd_per_hour.",
        )


def check_links(name: str, links: Sequence["Link"], known: set[str]) -> None:
    """Raises InvalidInput for a link of a node that is not known, without a bandwidth or with an
    impossible latency, and for one that joins no two nodes or two that another link joins at other
    numbers."""
    joined: dict[frozenset[str], tuple[float, float | None]] = {}
    for link in links:
        _check_link(name, link, known)
        pair, numbers = frozenset(link.nodes), (link.bandwidth_gbps, link.latency_us)
        if len(pair) < 2 or joined.setdefault(pair, numbers) != numbers:
            why = "are stated twice, at other numbers" if pair in joined else "are one node"
            raise InvalidInput(
                f"cluster {name!r}: the nodes {link.nodes} of a link {why}.",
                thing="links",
                value=link.nodes,
                remedy="State one link for each pair of nodes; the rate within a node is its "
                "intra_bandwidth_gbps.",
            )


def _check_link(name: str, link: "Link", known: set[str]) -> None:
    for address in link.nodes:
        if address not in known:
            raise InvalidInput(
                f"cluster {name!r}: a link names {address!r}, which is no node.",
                thing="links",
                value=address,
                remedy=f"Known nodes: {', '.join(sorted(known)[:8])}"
                f"{', ...' if len(known) > 8 else '.'}",
            )
    if not link.bandwidth_gbps > 0:
        raise InvalidInput(
            f"cluster {name!r}: link {link.nodes} has bandwidth_gbps "
            f"{link.bandwidth_gbps}; it must be positive.",
            thing="links",
            value=link.bandwidth_gbps,
            remedy="State its payload rate in Gbit/s.",
        )
    if link.latency_us is not None and not 0 <= link.latency_us < np.inf:
        raise InvalidInput(
            f"cluster {name!r}: link {link.nodes} has latency_us {link.latency_us}; it must be 0 "
            "or more.",
            thing="links",
            value=link.latency_us,
            remedy="State microseconds one way, or leave it out for those of its nodes.",
        )


def check_nodes(name: str, nodes: Sequence["Node"]) -> set[str]:
    """The nodes' addresses. Raises InvalidInput for what no node can be, or an address twice."""
    if not nodes:
        raise InvalidInput(f"cluster {name!r} has no nodes.", thing="nodes", value=())
    seen: set[str] = set()
    for node in nodes:
        _check_node(name, node)
        if node.address in seen:
            raise _refusal(name, node, "address", node.address, "is used by two nodes")
        seen.add(node.address)
    return seen


def _check_node(name: str, node: "Node") -> None:
    if not node.devices and not node.server_only:
        raise _refusal(name, node, "devices", (), "is empty")
    for device in node.devices:
        if device.type not in DEVICE_TYPES:
            raise _refusal(
                name, node, "device type", device.type, f"is none of {', '.join(DEVICE_TYPES)}"
            )
        if device.count < 1:
            raise _refusal(name, node, "device count", device.count, "must be at least 1")
        if device.memory_gb is not None and not device.memory_gb > 0:
            raise _refusal(name, node, "device memory_gb", device.memory_gb, "must be positive")
        if not device.slowdown > 0:
            raise _refusal(name, node, "device slowdown", device.slowdown, "must be positive")
    _check_gpu_links(name, node)
    if node.nics < 1:
        raise _refusal(name, node, "nics", node.nics, "must be at least 1")
    if not 0 <= node.nic_gbps < np.inf:
        raise _refusal(name, node, "nic_gbps", node.nic_gbps, "must be 0 or more")
    if not node.bandwidth_gbps > 0:
        raise _refusal(name, node, "bandwidth_gbps", node.bandwidth_gbps, "must be positive")
    if node.ranks > 1 and not (node.intra_bandwidth_gbps or 0) > 0:
        raise _refusal(
            name,
            node,
            "intra_bandwidth_gbps",
            node.intra_bandwidth_gbps,
            f"must be stated, since the node has {node.ranks} devices",
        )
    if not node.latency_us >= 0:
        raise _refusal(name, node, "latency_us", node.latency_us, "must not be negative")
    if not 0 <= node.usd_per_hour < np.inf:
        raise _refusal(name, node, "usd_per_hour", node.usd_per_hour, "must be 0 or more")
    if node.nic_gbps and node.bandwidth_gbps > node.nic_gbps * node.nics:
        wire = f"the {node.nic_gbps * node.nics:g} of {node.nics} x {node.nic_gbps:g} Gbit/s"
        why = f"must not exceed {wire} (nics x nic_gbps)"
        raise _refusal(name, node, "bandwidth_gbps", node.bandwidth_gbps, why)


def _check_gpu_links(name: str, node: "Node") -> None:
    if node.nvswitch and node.gpu_link == "pcie":
        raise _refusal(name, node, "gpu_link", "pcie", "contradicts nvswitch")
    if not (node.nvswitch or node.gpu_link == "nvlink"):
        return
    field = "nvswitch" if node.nvswitch else "gpu_link"
    if bare := [each.type for each in node.devices if not DEVICE_TYPES[each.type].nvlinks]:
        value = True if node.nvswitch else "nvlink"
        raise _refusal(name, node, field, value, f"joins NVLinks, and a {bare[0]} has none")


def _refusal(name: str, node: "Node", field: str, value: object, why: str) -> InvalidInput:
    return InvalidInput(
        f"cluster {name!r}, node {node.address!r}: {field} {why}, got {value!r}.",
        thing=f"node {node.address}",
        value=value,
        remedy="Correct the cluster file.",
    )


def check_numbers(name: str, stated: Mapping[str, float | None]) -> None:
    """Raises InvalidInput where one of `OPTIONAL_NUMBERS` is negative or not finite.

    stated: by the field's name; None where nothing is.
    """
    for field, remedy in OPTIONAL_NUMBERS.items():
        if (value := stated[field]) is not None and not 0 <= value < np.inf:
            raise InvalidInput(
                f"cluster {name!r}: {field} must be 0 or more and finite, got {value!r}.",
                thing=field,
                value=value,
                remedy=remedy,
            )


COST_NUMBERS = (
    "startup_seconds",
    "startup_seconds_per_worker",
    "seconds_per_byte",
    "host_seconds",
    "host_seconds_per_byte",
)
ROUNDING_SECONDS = 1e-12
"""By which a startup may be below 0: fits of earlier versions rounded so, and are still read."""


def check_costs(name: str, costs: Sequence["MessageCost"]) -> None:
    """Raises InvalidInput where a cost is negative or not finite."""
    for cost in costs:
        for field in COST_NUMBERS:
            value = getattr(cost, field)
            least = -ROUNDING_SECONDS if field == "startup_seconds" else 0.0
            if not least <= value < np.inf:
                raise InvalidInput(
                    f"cluster {name!r}: the {field} of {cost.kind} must be 0 or more and finite, "
                    f"got {value!r}.",
                    thing="costs",
                    value=value,
                    remedy="Leave the costs out, or measure them with `autosync probe`.",
                )


def check_fabric(
    name: str, oversubscription: float, hosts_per_leaf: int, nccl_version: str
) -> None:
    """Raises InvalidInput for a share below 1, fewer than no hosts, or what is no version."""
    if not 1 <= oversubscription < np.inf:
        raise InvalidInput(
            f"cluster {name!r}: oversubscription must be 1 or more, got {oversubscription!r}.",
            thing="oversubscription",
            value=oversubscription,
            remedy="State 2 where the hosts of a leaf switch can send twice what its links to the "
            "spine carry, or leave it out.",
        )
    if hosts_per_leaf < 0:
        raise InvalidInput(
            f"cluster {name!r}: hosts_per_leaf must be 0 or more, got {hosts_per_leaf!r}.",
            thing="hosts_per_leaf",
            value=hosts_per_leaf,
            remedy="State how many hosts a leaf switch has ports for, or leave it out.",
        )
    if nccl_version and not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}", nccl_version):
        raise InvalidInput(
            f"cluster {name!r}: nccl_version is no version, got {nccl_version[:40]!r}.",
            thing="nccl_version",
            value=nccl_version[:40],
            remedy="Write it as NCCL_DEBUG=VERSION prints it, 2.21.5, in quotes.",
        )


def check_curves(name: str, curves: Sequence[CollectiveCurve]) -> None:
    """Raises InvalidInput for two curves of the same collective."""
    seen = set()
    for curve in curves:
        if curve.measured in seen:
            raise InvalidInput(
                f"cluster {name!r}: two curves are of {curve}.",
                thing="curves",
                value=str(curve),
                remedy="Keep one of them.",
            )
        seen.add(curve.measured)
