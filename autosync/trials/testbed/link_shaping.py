"""The commands that build an emulated cluster, as text for sh, `ip -batch` and `tc -batch`.

One bridge in the supervisor's own network namespace; a namespace `n0`, `n1`, ... a node, joined
by a veth pair (`eth0` inside, `p0`, `p1`, ... on the bridge). A NIC is shaped in both directions:
on `eth0` what the node sends, on `p<i>` what it receives. A loopback has one shaper, which all that
the node's ranks send to each other passes, both ways.
"""

from dataclasses import dataclass

import numpy as np

from autosync.cluster import Cluster

BURST_BYTES = 128 * 1024
"""What a shaper lets pass at once after a pause. Measured: 1 mb gives 4 % free bandwidth, 4 mb
defeats the shaping, 32 kb costs CPU."""

WINDOW_SECONDS = 1e-3
"""Of the cluster's own time: a connection has no more under way than its link carries in it, so
that queues are as short as a real cluster's, from a pair's second connection on (Linux looks at a
route's window where it remembers an earlier one, net/ipv4/tcp_metrics.c): the self-check's, which
comes before any trial, is the first. Linux lets a socket keep about as much in its host (TCP
small queues, net/ipv4/tcp_output.c), and a switch port of 10 Gbit/s and a megabyte holds 0.8 ms.

Both ends of a pair have the same window. Where both send, data carries acknowledgements, which wait
in the queue that the other end's window fills. Were the fast end's four times as long, as its NIC
is four times as fast, the slow end would now and then stand still: on a machine that is busy half
of the time, below 95 % of its rate in 9 of 24 checks, 46 % at worst; 99 to 102 % with equal ones.

Left alone, Reno fills the shapers' queues: 50 ms, which at k = 2 are 25 ms of the cluster's own
time, behind which stands whatever small message another connection sends. Measured in turn on two
fast and two slow nodes (ResNet-50, s = 1/32, k = 2): 125.0, 128.8, 121.9 and 126.9 ms with such
queues, 112.2, 115.7, 116.2 and 115.1 with windows.
"""

LEAST_WINDOW = 10
"""Packets: Linux's own initial window."""

LEAST_LOOPBACK_WINDOW = 2
"""Packets, which are 45 times as large."""

QUEUE_SECONDS = 0.05
"""What a shaper keeps, at its rate, before it drops a packet."""

QUANTUM_BYTES = 60_000
"""What a class sends in its turn: about what the kernel hands over as one packet."""

ACKNOWLEDGEMENT_SHARE = 0.1
"""Of a shaper's rate, beside what data has. 66 bytes for every two frames are 2 % of a link; the
kernel's larger packets need fewer."""

ACKNOWLEDGEMENT = (
    "u32 match ip protocol 6 0xff match u8 0x05 0x0f at 0 match u16 52 0xffff at 2 "
    "match u8 0x10 0xff at 33"
)
"""A TCP segment that acknowledges and carries nothing: no IP options, 20 bytes of IP and 32 of TCP
with time stamps, no flag but ACK."""

TCP_SETTINGS = (
    "cd /proc/sys/net/ipv4; echo reno > tcp_congestion_control; echo 0 > tcp_slow_start_after_idle"
)
"""For sh in a node's namespace. Measured at 60 Mbit/s, a pair both ways: BBR, where it is a
machine's default, strays 0 to 30 % below the shaped rate, Reno stays within 0.1 %."""

INTERFACE = "eth0"
"""Of every node, in a namespace of its own."""

INTERFACES_FOLDER = "/sys/class/net"

SUBNET = "10.77"
"""Of all nodes; what is behind it is a node's number."""

PACKET_BYTES = 1448
"""TCP payload of a full Ethernet frame at an MTU of 1500."""

PAYLOAD_SHARE = PACKET_BYTES / 1514
"""What is payload of the bytes that a shaper counts."""

LOOPBACK_PACKET_BYTES = 65483

LOOPBACK_PAYLOAD_SHARE = LOOPBACK_PACKET_BYTES / 65549
"""The same of a loopback's, whose MTU of 65536 IPv4 fills up to 65535: less 52 bytes of headers
with time stamps, more 14 of Ethernet."""

SHAPED_LOOPBACK_GBPS = 4.0
"""Intra-node rates below this are shaped; faster ones cost more CPU to shape than to carry."""


@dataclass(frozen=True, slots=True)
class EmulatedNode:
    """exceptions: (address of the other node, payload bit/s) of pairs with a link of their own.

    other_rates: the same of all pairs that carry another rate than this node's NIC, because of a
        slower one at the other end, too.
    loopback_bits: shaped intra-node rate; None where the loopback is left as it is.
    window_seconds: `WINDOW_SECONDS` in the testbed's time.
    """

    index: int
    address: str
    bits_per_second: float
    exceptions: tuple[tuple[str, float], ...]
    other_rates: tuple[tuple[str, float], ...]
    loopback_bits: float | None
    window_seconds: float

    @property
    def namespace(self) -> str:
        return f"n{self.index}"


def address_of(index: int) -> str:
    return f"{SUBNET}.{(index + 1) >> 8}.{(index + 1) & 255}"


def emulated_nodes(
    cluster: Cluster, byte_scale: float, time_scale: float
) -> tuple[EmulatedNode, ...]:
    """The nodes with every rate multiplied by s / k."""
    rate_factor = byte_scale / time_scale
    place = {node.address: i for i, node in enumerate(cluster.nodes)}
    bandwidth, nics = cluster.bandwidth_bytes_per_second(), cluster.nic_bytes_per_second()
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
                tuple(
                    (address_of(int(other)), float(bandwidth[index, other]) * 8 * rate_factor)
                    for other in np.flatnonzero(bandwidth[index] != nics[index])
                    if other != index
                ),
                inside * 1e9 if shaped else None,
                WINDOW_SECONDS * time_scale,
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
            f"link add {port} type veth peer name {INTERFACE} netns {node.namespace}",
            f"link set {port} master br0 up",
        ]
    return "\n".join(lines)


def switch_shaping(nodes: tuple[EmulatedNode, ...]) -> str:
    """For `tc -batch` in the supervisor's namespace: what each node receives."""
    return "\n".join(
        line
        for node in nodes
        for line in _shape(f"p{node.index}", _wire(node.bits_per_second), _peers(node, "src"))
    )


def node_links(node: EmulatedNode) -> str:
    """For `ip -batch` in the node's namespace."""
    own, seconds = node.address, node.window_seconds
    window = _packets(node.bits_per_second * seconds, PACKET_BYTES, LEAST_WINDOW)
    lines = [
        "link set lo up",
        f"addr add {own}/16 dev {INTERFACE}",
        f"link set {INTERFACE} up",
        f"route change {SUBNET}.0.0/16 dev {INTERFACE} proto kernel scope link src {own} "
        f"cwnd lock {window}",
    ]
    for address, bits in node.other_rates:
        window = _packets(bits * seconds, PACKET_BYTES, LEAST_WINDOW)
        lines.append(f"route add {address} dev {INTERFACE} scope link src {own} cwnd lock {window}")
    if node.loopback_bits is not None:
        bits = node.loopback_bits * seconds
        window = _packets(bits, LOOPBACK_PACKET_BYTES, LEAST_LOOPBACK_WINDOW)
        lines.append(
            f"route change table local local {own} dev lo proto kernel scope host src {own} "
            f"cwnd lock {window}"
        )
    return "\n".join(lines)


def node_shaping(node: EmulatedNode) -> str:
    """For `tc -batch` in the node's namespace: what it sends, and its loopback."""
    lines = _shape(INTERFACE, _wire(node.bits_per_second), _peers(node, "dst"))
    if node.loopback_bits is not None:
        lines += _shape("lo", _wire(node.loopback_bits, LOOPBACK_PAYLOAD_SHARE))
    return "\n".join(lines)


def _peers(node: EmulatedNode, end: str) -> tuple[tuple[str, int], ...]:
    """end: `src` or `dst`, which of a packet's addresses is the peer's."""
    return tuple((f"ip {end} {address}", _wire(rate)) for address, rate in node.exceptions)


def supervisor_script(nodes: tuple[EmulatedNode, ...]) -> str:
    """A supervisor's whole life, for sh: it builds, says `ready` and stays until its input ends."""
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
            interface_speed(nodes),
            f"ip -batch - <<'E'\n{switch_links(nodes)}\nE",
            f"{{ tc -batch - <<'E'\n{switch_shaping(nodes)}\nE\n}} & jobs=$!",
            *inside,
            "for job in $jobs; do wait $job; done",
            "echo ready",
            "exec cat >/dev/null 2>&1",
        ]
    )


def interface_speed(nodes: tuple[EmulatedNode, ...]) -> str:
    """For sh in the supervisor's mount namespace, which its nodes share: the speed of their
    interface where programs look for it, in Mbit/s with headers. Otherwise this machine's own
    interfaces would be there, and perhaps one of the same name. NCCL chooses its algorithms and
    channels for the slowest interface of all ranks, so one speed stands for all nodes."""
    speed = max(1, round(_wire(min(node.bits_per_second for node in nodes)) / 1e6))
    own = f"{INTERFACES_FOLDER}/{INTERFACE}"
    return "\n".join(
        [
            f"mount -t tmpfs -o mode=755 autosync {INTERFACES_FOLDER}",
            f"mkdir {own}",
            f"echo {speed} > {own}/speed",
        ]
    )


def _shape(device: str, wire_bits: int, peers: tuple[tuple[str, int], ...] = ()) -> list[str]:
    """One rate, and others for some peers: (what u32 matches, rate).

    Acknowledgements have a class of their own. In one queue with what a node sends, those of what
    it receives would wait for it: senders hold a window back for so long, and where that window is
    no longer than the queue a link carries too little (10 to 47 % from a slow node to a fast one).
    """
    top = max([wire_bits, *(rate for _, rate in peers)])
    beside = round(wire_bits * ACKNOWLEDGEMENT_SHARE)
    lines = [
        f"qdisc add dev {device} root handle 1: htb default 3",
        _class(device, "1:", "1:1", top, top),
        _class(device, "1:1", "1:2", beside, top, priority=0),
        f"filter add dev {device} parent 1: protocol ip prio 1 {ACKNOWLEDGEMENT} flowid 1:2",
        _class(device, "1:1", "1:3", wire_bits, wire_bits),
        _queue(device, "1:3", wire_bits),
    ]
    for number, (match, rate) in enumerate(peers, start=4):
        lines += [
            _class(device, "1:1", f"1:{number:x}", rate, rate),
            _queue(device, f"1:{number:x}", rate),
            f"filter add dev {device} parent 1: protocol ip prio 2 u32 match {match} "
            f"flowid 1:{number:x}",
        ]
    return lines


def _class(device: str, parent: str, name: str, rate: int, ceiling: int, priority: int = 1) -> str:
    return (
        f"class add dev {device} parent {parent} classid {name} htb rate {rate}bit "
        f"ceil {ceiling}bit prio {priority} burst {BURST_BYTES} cburst {BURST_BYTES} "
        f"quantum {QUANTUM_BYTES}"
    )


def _queue(device: str, parent: str, rate: int) -> str:
    limit = round(rate / 8 * QUEUE_SECONDS) + BURST_BYTES
    return f"qdisc add dev {device} parent {parent} bfifo limit {limit}"


def _wire(payload_bits: float, payload_share: float = PAYLOAD_SHARE) -> int:
    return max(8000, round(payload_bits / payload_share))


def _packets(payload_bits: float, packet_bytes: int, least: int) -> int:
    return max(least, round(payload_bits / 8 / packet_bytes))
