"""Strategies that tests edit."""

from autosync.domain import Domain
from autosync.population import Population, concatenate, encode
from autosync.search.designs.design_table import hand_designed
from autosync.search.loop.sources import parent_rows
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from tests.domains import chain_graph, domain_of, grid_cluster

SMALL = Space(whole_below_bytes=1000)
DOMAIN = domain_of(
    chain_graph(((300, 64), (64,), (128, 64), (128,), (10, 128), (1000, 48), (10,))),
    grid_cluster(2, 2),
)


def parents_among(domain: Domain, measured: Population) -> Population:
    """Of these, those that others can be made of."""
    return measured.take(parent_rows(domain, measured))


def designs_and_draws(domain: Domain, space: Space, seed: int) -> Population:
    designs = [strategy for _, strategy in hand_designed(domain, space)]
    return parents_among(
        domain, concatenate([sample(domain, space, 0, 6, seed), encode(designs, domain)])
    )
