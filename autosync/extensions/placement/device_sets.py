"""Where a module may be placed: devices, and sets of them that are worth a try."""

from collections.abc import Iterator

from autosync.domain import Domain
from autosync.extensions.placement.document import PlacedModule, evenly, in_proportion
from autosync.search.domain_facts import rank_speeds


def module_places(domain: Domain, module: str) -> Iterator[PlacedModule]:
    """Each single device, the ranks of each kind of device and of each node evenly, and all ranks
    in proportion to speed where speeds differ."""
    for ranks in device_sets(domain):
        yield evenly(module, ranks)
    speeds = rank_speeds(domain)
    if max(speeds) > min(speeds):
        yield in_proportion(module, range(domain.world_size), speeds)


def device_sets(domain: Domain) -> list[tuple[int, ...]]:
    """Ranks: each by itself, then those of equal speed, then those of a node; not all."""
    speeds = rank_speeds(domain)
    nodes = domain.cluster.node_of_server()[: domain.world_size].tolist()
    found: dict[tuple[int, ...], None] = {(rank,): None for rank in range(domain.world_size)}
    for keys in (speeds, nodes):
        for key in dict.fromkeys(keys):
            ranks = tuple(rank for rank, own in enumerate(keys) if own == key)
            if len(ranks) < domain.world_size:
                found[ranks] = None
    return list(found)
