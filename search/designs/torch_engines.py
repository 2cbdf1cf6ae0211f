"""torch's own ways beside DDP as it comes: FSDP2, ZeRO-2, HSDP, and DDP with a communication hook.

They stand in the same ranked lists as the strategies of this runtime, and torch itself runs them.
"""

from collections.abc import Callable
from dataclasses import replace

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.graph import Variable
from autosync.search.designs import known_designs
from autosync.search.designs.design_table import Builder, fitted
from autosync.search.space import Space
from autosync.simulator.sharded_strategy import fully_sharded
from autosync.strategy import EXACT, AllReduce, Encoding, Strategy

POWERSGD_RANK = 4
"""Of the design that bears no rank in its name; the largest that Vogels et al. 2019 train with."""

LEAST_COMPRESSION = 2
"""torch's PowerSGD hook leaves a matrix as it is unless its factors are smaller than this part of
it (`min_compression_rate`)."""


def fsdp2(domain: Domain) -> Strategy:
    return fully_sharded(domain, domain.world_size, reshard_after_forward=True)


def zero2(domain: Domain) -> Strategy:
    return fully_sharded(domain, domain.world_size, reshard_after_forward=False)


def hsdp(domain: Domain) -> Strategy:
    return fully_sharded(domain, ranks_of_a_node(domain), reshard_after_forward=True)


def hsdp_zero2(domain: Domain) -> Strategy:
    return fully_sharded(domain, ranks_of_a_node(domain), reshard_after_forward=False)


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

    What PowerSGD leaves out of a bucket (vectors, matrices that gain nothing) travels in a message
    of its own.
    """
    plain = known_designs.ddp(domain)
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


def _hook(encoding: Encoding) -> Callable[[Domain], Strategy]:
    return lambda domain: ddp_hooked(domain, encoding)


TORCH_BUILDERS: dict[str, Builder] = {
    "fsdp2": Builder(
        fsdp2,
        "torch's fully_shard: parameters, gradients and optimizer state in parts, gathered for "
        "each pass (FSDP2, ZeRO-3).",
    ),
    "zero2": Builder(
        zero2,
        "fully_shard whose gathered parameters stay from forward to backward (ZeRO-2).",
    ),
    "hsdp": Builder(hsdp, "fully_shard within each node, all-reduced between nodes (HSDP)."),
    "hsdp_zero2": Builder(hsdp_zero2, "HSDP whose gathered parameters stay until backward."),
    "ddp_bf16": Builder(
        _hook(Encoding("bf16")), "torch's DDP with its bf16 compression hook (lossy)."
    ),
    "ddp_fp16": Builder(
        _hook(Encoding("fp16")), "torch's DDP with its fp16 compression hook (lossy)."
    ),
    "ddp_powersgd": Builder(
        _hook(Encoding("powersgd", POWERSGD_RANK)),
        f"torch's DDP with its PowerSGD hook of rank {POWERSGD_RANK} (lossy).",
    ),
}
"""All that torch runs beside DDP as it comes."""


def torch_designs(domain: Domain, space: Space) -> list[tuple[str, Strategy]]:
    """Those that run on this domain and lie in the space; PowerSGD of the ranks that it allows."""
    builders = {name: each.build for name, each in TORCH_BUILDERS.items()}
    for encoding in space.encodings:
        if encoding.name == "powersgd" and encoding.rank != POWERSGD_RANK:
            builders[f"ddp_powersgd_{encoding.rank}"] = _hook(encoding)
    found = []
    for name, build in builders.items():
        strategy = fitted(domain, space, build)
        if strategy is not None:
            found.append((name, strategy))
    return found
