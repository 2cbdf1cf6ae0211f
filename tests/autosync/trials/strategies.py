"""Small domains and bundles that trials run in milliseconds."""

from autosync.bundle import Bundle, make_bundle
from autosync.domain import Domain
from autosync.extensions.staleness.document import late_by
from autosync.strategy import (
    AllReduce,
    ParameterServer,
    ReduceScatter,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    split,
)
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import strategy_of


def small_domain(nodes: int = 2) -> Domain:
    return domain_of(chain_graph(), grid_cluster(nodes), 2e-4)


def ddp(domain: Domain) -> Bundle:
    schedule = Schedule("ddp", 25 * 2**20)
    return make_bundle(strategy_of(domain, lambda v: AllReduce(0), schedule), domain)


def mixed(domain: Domain) -> Bundle:
    """Every dense synchronizer, cut and whole, with overlap into the next forward pass."""
    choices = []
    for index, variable in enumerate(domain.graph.variables):
        partition = split(variable.shape, 0, 2)
        group = 3 * index
        every: list[tuple[Synchronizer, ...]] = [
            (AllReduce(group), AllReduce(group + 1)),
            (ReduceScatter(group), ParameterServer(1, group + 1)),
            (ReduceScatter(group, True), ParameterServer(0, group + 1)),
        ]
        shards = every[index % 3]
        choices.append(VariableChoice(variable.name, partition, shards))
    schedule = Schedule("priority", overlap_forward=True)
    replicas = even_replicas(domain.world_size)
    return make_bundle(Strategy(tuple(choices), replicas, schedule), domain)


def lagging(domain: Domain, shard: Synchronizer, staleness: int) -> Bundle:
    """Whole variables, each synchronized by `shard`, that many iterations late."""
    late = strategy_of(domain, lambda v: shard).carrying(*late_by(staleness))
    return make_bundle(late, domain)
