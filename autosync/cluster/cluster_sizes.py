"""The same cluster with fewer or more nodes."""

from dataclasses import replace

from autosync.cluster.cluster_document import Cluster, Node
from autosync.errors import InvalidInput, NotSupported

MOST_DEVICES = 16_384


def cluster_of_nodes(cluster: Cluster, count: int) -> Cluster:
    """The first `count` nodes that hold ranks; more than there are repeat them, with addresses of
    their own. Dedicated server hosts and the file's name stay.

    Raises:
        InvalidInput: fewer than one node, or more than MOST_DEVICES devices.
        NotSupported: more nodes than there are, which differ, or whose links are stated pair by
            pair.
    """
    workers = [node for node in cluster.nodes if node.ranks]
    servers = tuple(node for node in cluster.nodes if not node.ranks)
    if count == len(workers):
        return cluster
    devices = count * max(node.ranks for node in workers)
    if count < 1 or devices > MOST_DEVICES:
        raise InvalidInput(
            f"{cluster.name} cannot have {count} nodes.",
            thing="nodes",
            value=count,
            remedy=f"Give 1 node or more, of {MOST_DEVICES} devices at most in all.",
        )
    kinds = {replace(node, address="") for node in workers}
    if count > len(workers) and (len(kinds) > 1 or cluster.links):
        why = "its nodes differ" if len(kinds) > 1 else "its links are stated pair by pair"
        raise NotSupported(
            f"{cluster.name} has {len(workers)} nodes, and what a further one would be is not "
            f"known: {why}.",
            thing="nodes",
            value=count,
            remedy=f"Give at most {len(workers)} nodes, or a cluster file of equal nodes.",
        )
    kept = {node.address for node in workers[:count]} | {node.address for node in servers}
    links = tuple(link for link in cluster.links if set(link.nodes) <= kept)
    taken = {node.address for node in cluster.nodes}
    more = tuple(_further(workers[0], place, taken) for place in range(len(workers), count))
    nodes = (*workers[:count], *more, *servers)
    day = cluster.priced_on if any(node.usd_per_hour for node in nodes) else ""
    return replace(cluster, nodes=nodes, links=links, priced_on=day)


def _further(node: Node, place: int, taken: set[str]) -> Node:
    address = f"{node.address}-{place + 1}"
    while address in taken:
        address += "-"
    return replace(node, address=address)
