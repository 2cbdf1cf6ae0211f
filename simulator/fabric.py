"""The switches between hosts: which bytes of a team of ranks cross the spine.

On a rail-optimized fabric NIC i of every host of a pod hangs on leaf switch i, so NICs of one rail
reach each other across one leaf, and NICs of different rails across the spine. Without rails all
NICs of a host hang on the leaf of its rack. Either way hosts fill leaves in the order of the
cluster file, and what leaves a leaf shares its links to the spine, which an oversubscribed fabric
has fewer of. Traffic of other jobs is not counted.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from autosync.cluster import Cluster

HOSTS_PER_RAIL_LEAF, HOSTS_PER_RACK_LEAF = 32, 1
"""Where a file states none. With rails: a scalable unit of a DGX SuperPOD of H100, whose leaf
switches of 64 ports have half of them for hosts. Without: all messages between hosts cross the
spine, the most that they can."""


@dataclass(frozen=True, slots=True)
class Spine:
    """What a team of ranks sees of an oversubscribed fabric.

    oversubscription: bytes a second that all hosts of a leaf can send, over those that the leaf's
    links to the spine carry. hosts_per_leaf: number of hosts that a leaf has ports for. rails:
    whether the fabric is rail-optimized. host_nics: number of NICs of a host. leaves: number of the
    team's hosts on each leaf (with rails, in each pod), in the order of its ranks.
    """

    oversubscription: float
    hosts_per_leaf: int
    rails: bool
    host_nics: int
    leaves: tuple[int, ...]

    def of_hosts(self, count: int) -> "Spine":
        """The same for a team on so many hosts that follow each other."""
        full, rest = divmod(count, self.hosts_per_leaf)
        leaves = (self.hosts_per_leaf,) * full + ((rest,) if rest else ())
        return replace(self, leaves=leaves)

    def uplink_nics(self, nics: int) -> float:
        """Rate of a leaf's links to the spine, in NICs. nics: number of NICs that the team uses in
        a host. With rails, the rate of all leaves of these NICs' rails together."""
        each = nics if self.rails else self.host_nics
        return self.hosts_per_leaf * each / self.oversubscription

    @property
    def most_hosts(self) -> int:
        """The largest number of the team's hosts on one leaf."""
        return max(self.leaves)

    @property
    def crosses(self) -> bool:
        return len(self.leaves) > 1

    @property
    def ring_exits(self) -> float:
        """Bytes of a ring that leave a leaf, over those that leave a host. Hosts of a leaf are
        neighbours in the ring, so only its last one sends to another leaf."""
        return float(self.crosses)

    @property
    def tree_exits(self) -> float:
        """The same for a double binary tree: edges of the busiest leaf over those of the busiest
        host."""
        return _tree_exits(self.leaves) if self.crosses else 0.0


def leaf_of_node(cluster: Cluster) -> tuple[int, ...]:
    """The leaf, or the pod of a rail-optimized fabric, of each node."""
    size = hosts_per_leaf(cluster)
    return tuple(place // size for place in range(len(cluster.nodes)))


def has_rails(cluster: Cluster) -> bool:
    return all(node.rails for node in cluster.nodes if node.ranks)


def hosts_per_leaf(cluster: Cluster) -> int:
    """As the file states, or as is assumed."""
    assumed = HOSTS_PER_RAIL_LEAF if has_rails(cluster) else HOSTS_PER_RACK_LEAF
    return cluster.hosts_per_leaf or assumed


def spine_of(cluster: Cluster, nodes: tuple[int, ...]) -> Spine | None:
    """What a team on these nodes sees; None where the spine carries all that its leaves send.

    nodes: places in the file, ascending.
    """
    if cluster.oversubscription == 1 or len(nodes) < 2:
        return None
    leaf = leaf_of_node(cluster)
    counts: dict[int, int] = {}
    for node in nodes:
        counts[leaf[node]] = counts.get(leaf[node], 0) + 1
    return Spine(
        oversubscription=cluster.oversubscription,
        hosts_per_leaf=hosts_per_leaf(cluster),
        rails=has_rails(cluster),
        host_nics=min(cluster.nodes[node].nics for node in nodes),
        leaves=tuple(counts.values()),
    )


def assumption_of(cluster: Cluster) -> str:
    """What is taken for a fabric that the file leaves out, a sentence; "" where it states it."""
    if cluster.oversubscription == 1 or cluster.hosts_per_leaf:
        return ""
    taken = (
        f"{HOSTS_PER_RAIL_LEAF} hosts are taken for a pod, within which NICs of one rail do not "
        "cross the spine"
        if has_rails(cluster)
        else "all messages between hosts are taken to cross the spine"
    )
    return f"cluster {cluster.name!r} states no hosts_per_leaf; {taken}"


@lru_cache(maxsize=256)
def _tree_exits(leaves: tuple[int, ...]) -> float:
    hosts = sum(leaves)
    leaf = [place for place, count in enumerate(leaves) for _ in range(count)]
    of_host, of_leaf = [0] * hosts, [0] * len(leaves)
    for child, parent in double_tree(hosts):
        of_host[child] += 1
        of_host[parent] += 1
        if leaf[child] != leaf[parent]:
            of_leaf[leaf[child]] += 1
            of_leaf[leaf[parent]] += 1
    return max(of_leaf) / max(of_host)


def double_tree(hosts: int) -> list[tuple[int, int]]:
    """Child and parent of each edge of NCCL's two trees over hosts (src/graph/trees.cc): a binary
    tree in order, and its mirror image, or where their number is odd, itself shifted by one."""
    first = [(child, _parent(child, hosts)) for child in range(1, hosts)]
    if hosts % 2:
        second = [((child + 1) % hosts, (parent + 1) % hosts) for child, parent in first]
    else:
        second = [(hosts - 1 - child, hosts - 1 - parent) for child, parent in first]
    return first + second


def _parent(child: int, hosts: int) -> int:
    bit = child & -child
    up = (child ^ bit) | (bit << 1)
    return up if up < hosts else child ^ bit
