"""torch's own ways beside DDP as it comes: FSDP2, ZeRO-2, HSDP, and DDP with a communication hook.

torch itself runs them. They are ranked beside the strategies of this runtime.
"""

from dataclasses import replace

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.graph import Variable
from autosync.search.designs.known_designs import ddp
from autosync.simulator.sharded_strategy import fully_sharded
from autosync.strategy import EXACT, AllReduce, Encoding, Strategy

POWERSGD_RANK = 4
"""Of the design that bears no rank in its name; the largest that Vogels et al. 2019 train with."""

LEAST_COMPRESSION = 2
"""torch's PowerSGD hook leaves a matrix as it is unless its factors are smaller than this part of
it (`min_compression_rate`)."""


def fsdp2(domain: Domain) -> Strategy:
    """torch's fully_shard: parameters, gradients and optimizer state in parts, gathered for each
    pass (FSDP2, ZeRO-3)."""
    return fully_sharded(domain, domain.world_size, reshard_after_forward=True)


def zero2(domain: Domain) -> Strategy:
    """fully_shard whose gathered parameters stay from forward to backward (ZeRO-2)."""
    return fully_sharded(domain, domain.world_size, reshard_after_forward=False)


def hsdp(domain: Domain) -> Strategy:
    """fully_shard within each node, all-reduced between nodes (HSDP)."""
    return fully_sharded(domain, ranks_of_a_node(domain), reshard_after_forward=True)


def hsdp_zero2(domain: Domain) -> Strategy:
    """HSDP whose gathered parameters stay until backward."""
    return fully_sharded(domain, ranks_of_a_node(domain), reshard_after_forward=False)


def ddp_bf16(domain: Domain) -> Strategy:
    """torch's DDP with its bf16 compression hook (lossy)."""
    return ddp_hooked(domain, Encoding("bf16"))


def ddp_fp16(domain: Domain) -> Strategy:
    """torch's DDP with its fp16 compression hook (lossy)."""
    return ddp_hooked(domain, Encoding("fp16"))


def ddp_powersgd(domain: Domain) -> Strategy:
    """torch's DDP with its PowerSGD hook of rank `POWERSGD_RANK` (lossy)."""
    return ddp_hooked(domain, Encoding("powersgd", POWERSGD_RANK))


def ranks_of_a_node(domain: Domain) -> int:
    """Raises NotSupported where nodes have one rank, or different numbers, or there is one node."""
    counts = {node.ranks for node in domain.cluster.nodes if node.ranks}
    ranks = counts.pop()
    if counts or ranks < 2 or ranks == domain.world_size:
        raise NotSupported(
            "hybrid sharding shards within nodes: it takes several nodes of as many ranks each.",
            thing="shard_ranks",
            value=[node.ranks for node in domain.cluster.nodes][:8],
        )
    return ranks


def ddp_hooked(domain: Domain, encoding: Encoding) -> Strategy:
    """torch's DDP with one of torch's communication hooks: bf16, fp16 or PowerSGD.

    Variables that PowerSGD does not compress (vectors, matrices that gain nothing) travel in a
    message of their own.
    """
    plain = ddp(domain)
    choices = []
    for variable, choice in zip(domain.graph.variables, plain.choices, strict=True):
        left_out = encoding.name == "powersgd" and not _gains(variable, encoding.rank)
        packed = EXACT if left_out else encoding
        group = 2 * choice.shards[0].group + left_out
        choices.append(replace(choice, shards=(AllReduce(group, encoding=packed),)))
    return replace(plain, choices=tuple(choices)).canonical()


def _gains(variable: Variable, rank: int) -> bool:
    """As torch's `_should_compress` has it."""
    if len(variable.shape) < 2:
        return False
    rows, columns = variable.shape[0], variable.elements // variable.shape[0]
    return (rows + columns) * rank * LEAST_COMPRESSION < variable.elements
