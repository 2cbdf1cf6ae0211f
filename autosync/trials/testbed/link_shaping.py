"""The commands that build an emulated cluster, as text for sh, `ip -batch` and `tc -batch`.

One bridge in the supervisor's own network namespace; a namespace `n0`, `n1`, ... a node, joined
by a veth pair (`eth0` inside, `p0`, `p1`, ... on the bridge). A NIC is shaped in both directions:
on `eth0` what the node sends, on `p<i>` what it receives. A loopback has one shaper, which all that
the node's ranks send to each other passes, both ways.
"""

from dataclasses import dataclass

from autosync.cluster import Cluster

BURST_BYTES = 128 * 1024
"""What a shaper lets pass at once after a pause. Measured: 1 mb gives 4 % free bandwidth, 4 mb
defeats the shaping, 32 kb costs CPU."""

BURST = f"{BURST_BYTES // 1024}kb"

QUEUE = "latency 50ms"

TCP_SETTINGS = (
    "cd /proc/sys/net/ipv4; echo reno > tcp_congestion_control; echo 0 > tcp_slow_start_after_idle"
)
"""For sh in a node's namespace. Measured at 60 Mbit/s, a pair both ways: BBR, where it is a
machine's default, strays 0 to 30 % below the shaped rate, Reno stays within 0.1 %."""

PAYLOAD_SHARE = 1448 / 1514
"""TCP payload of a full Ethernet frame at an MTU of 1500, as the shaper counts bytes."""

LOOPBACK_PAYLOAD_SHARE = 65483 / 65549
"""The same of a loopback's, whose MTU of 65536 IPv4 fills up to 65535: less 52 bytes of headers
with time stamps, more 14 of Ethernet."""

SHAPED_LOOPBACK_GBPS = 4.0
"""Intra-node rates below this are shaped; faster ones cost more CPU to shape than to carry."""


@dataclass(frozen=True, slots=True)
class EmulatedNode:
    """exceptions: (address of the other node, payload bit/s) of pairs with a link of their own.

    loopback_bits: shaped intra-node rate; None where the loopback is left as it is.
    """

    index: int
    address: str
    bits_per_second: float
    exceptions: tuple[tuple[str, float], ...]
    loopback_bits: float | None

    @property
    def namespace(self) -> str:
        return f"n{self.index}"


def address_of(index: int) -> str:
    return f"10.77.{(index + 1) >> 8}.{(index + 1) & 255}"


def emulated_nodes(cluster: Cluster, rate_factor: float) -> tuple[EmulatedNode, ...]:
    """The nodes with every rate multiplied by `rate_factor` (s / k)."""
    place = {node.address: i for i, node in enumerate(cluster.nodes)}
    nodes = []
    for index, node in enumerate(cluster.nodes):
        exceptions = tuple(
            (
                address_of(place[link.nodes[1 - link.nodes.index(node.address)]]),
                link.bandwidth_gbps * 1e9 * rate_factor,
            )
            for link in cluster.links
            if node.address in link.nodes
        )
        inside = (node.intra_bandwidth_gbps or 0) * rate_factor
        shaped = node.ranks > 1 and 0 < inside < SHAPED_LOOPBACK_GBPS
        nodes.append(
            EmulatedNode(
                index,
                address_of(index),
                node.bandwidth_gbps * 1e9 * rate_factor,
                exceptions,
                inside * 1e9 if shaped else None,
            )
        )
    return tuple(nodes)


def switch_links(nodes: tuple[EmulatedNode, ...]) -> str:
    """For `ip -batch` in the supervisor's namespace."""
    lines = ["link set lo up", "link add br0 type bridge", "link set br0 up"]
    lines += [f"netns add {node.namespace}" for node in nodes]
    for node in nodes:
        port = f"p{node.index}"
        lines += [
            f"link add {port} type veth peer name eth0 netns {node.namespace}",
            f"link set {port} master br0 up",
        ]
    return "\n".join(lines)


def switch_shaping(nodes: tuple[EmulatedNode, ...]) -> str:
    """For `tc -batch` in the supervisor's namespace: what each node receives."""
    return "\n".join(
        line
        for node in nodes
        for line in _shape(f"p{node.index}", node.bits_per_second, node.exceptions, "src")
    )


def node_links(node: EmulatedNode) -> str:
    """For `ip -batch` in the node's namespace."""
    return "\n".join(["link set lo up", f"addr add {node.address}/16 dev eth0", "link set eth0 up"])


def node_shaping(node: EmulatedNode) -> str:
    """For `tc -batch` in the node's namespace: what it sends, and its loopback."""
    lines = _shape("eth0", node.bits_per_second, node.exceptions, "dst")
    if node.loopback_bits is not None:
        lines.append(_one_rate("lo", _wire(node.loopback_bits, LOOPBACK_PAYLOAD_SHARE)))
    return "\n".join(lines)


def supervisor_script(nodes: tuple[EmulatedNode, ...], lasting: bool) -> str:
    """A supervisor's whole life, for sh: it builds, says `ready` and stays, until `down` where it
    is lasting, else until its input ends."""
    life = "sleep infinity </dev/null" if lasting else "cat"
    inside = [
        f"{{ nsenter --net=/run/netns/{node.namespace} sh -c '{TCP_SETTINGS}'\n"
        f"ip -n {node.namespace} -batch - <<'E'\n{node_links(node)}\nE\n"
        f"tc -n {node.namespace} -batch - <<'E'\n{node_shaping(node)}\nE\n}} & jobs=\"$jobs $!\""
        for node in nodes
    ]
    return "\n".join(
        [
            "set -e",
            "mount -t tmpfs -o mode=755 autosync /run",
            "mkdir /run/netns",
            f"ip -batch - <<'E'\n{switch_links(nodes)}\nE",
            f"{{ tc -batch - <<'E'\n{switch_shaping(nodes)}\nE\n}} & jobs=$!",
            *inside,
            "for job in $jobs; do wait $job; done",
            "echo ready",
            f"exec {life} >/dev/null 2>&1",
        ]
    )


def _shape(
    device: str, bits: float, exceptions: tuple[tuple[str, float], ...], match: str
) -> list[str]:
    """One rate by tbf; rates per peer by htb, a class each under the NIC's."""
    nic = _wire(bits)
    if not exceptions:
        return [_one_rate(device, nic)]
    top = max([nic, *(_wire(rate) for _, rate in exceptions)])
    burst = f"burst {BURST} cburst {BURST} quantum 60000"
    lines = [
        f"qdisc add dev {device} root handle 1: htb default 2",
        f"class add dev {device} parent 1: classid 1:1 htb rate {top}bit {burst}",
        f"class add dev {device} parent 1:1 classid 1:2 htb rate {nic}bit ceil {nic}bit {burst}",
    ]
    for number, (address, rate) in enumerate(exceptions, start=3):
        wire = _wire(rate)
        lines += [
            f"class add dev {device} parent 1:1 classid 1:{number:x} htb rate {wire}bit "
            f"ceil {wire}bit {burst}",
            f"filter add dev {device} parent 1: protocol ip u32 match ip {match} {address} "
            f"flowid 1:{number:x}",
        ]
    return lines


def _one_rate(device: str, wire_bits: int) -> str:
    return f"qdisc add dev {device} root tbf rate {wire_bits}bit burst {BURST} {QUEUE}"


def _wire(payload_bits: float, payload_share: float = PAYLOAD_SHARE) -> int:
    return max(8000, round(payload_bits / payload_share))
