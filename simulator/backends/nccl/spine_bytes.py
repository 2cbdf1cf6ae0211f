"""How many bytes of NCCL's algorithms leave a leaf switch for the spine.

Bytes of all hosts on the leaf that sends most, per byte of the message. A channel of a ring or tree
enters and leaves every host by the same NIC, so within a leaf, or a pod of a rail-optimized
fabric, it does not cross the spine. What GPUs send each other by themselves does where their rails
differ, unless NVLink carries it to the NIC of the receiver's rail first (PXN).
"""

import numpy as np

from autosync.simulator.topology import Topology


def ring_spine_bytes(topology: Topology, operation: str, wire: float) -> float:
    """Of rings and chains, and of what every rank sends by itself. wire: bytes out of a node."""
    spine = topology.spine
    if spine is None:
        return 0.0
    hosts, gpus = spine.most_hosts, topology.gpus_per_node
    across = 0.0  # between rails of one pod, of what a GPU sends to those of another host
    if spine.rails and not topology.passes_peers:
        across = 1.0 - max(1.0, gpus / topology.nics) / gpus
    if operation == "all_to_all":
        here, n = hosts * gpus, topology.ranks
        return here * ((n - here) + (here - gpus) * across) / n
    leaving = spine.ring_exits * wire
    if operation == "send_recv" and across:  # to the next rank: the last GPU of a host to a first
        return max(leaving, hosts * wire)
    return leaving


def tree_spine_bytes(topology: Topology, crossing: float) -> float:
    """Of double binary trees. crossing: bytes out of a node."""
    return topology.spine.tree_exits * crossing if topology.spine else 0.0


def summed_spine_bytes(topology: Topology) -> float:
    """Where switches add up: a leaf sends the sum of its hosts."""
    return float(topology.spine is not None and topology.spine.crosses)


def pat_spine_bytes(topology: Topology) -> float:
    """Steps to ranks half of the team away carry one part of the message, steps of half that length
    two: the longer the way, the fewer bytes."""
    spine, n = topology.spine, topology.ranks
    if spine is None or not spine.crosses:
        return 0.0
    lengths = 2.0 ** np.arange(np.ceil(np.log2(n)))
    parts = 1.0 / lengths
    leaving = np.minimum(lengths, spine.most_hosts) * parts / parts.sum()
    return float(leaving.sum() * (n - 1) / n)
