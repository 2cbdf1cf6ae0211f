"""Hypothesis strategies for the domains and spaces that sampler tests draw from, and what must hold
of all that is drawn."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from autosync.domain import Domain, Optimizer
from autosync.population import Population
from autosync.search.space import Space
from autosync.strategy import Encoding
from tests.domains import chain_graph, domain_of, grid_cluster

SHAPES = ((300, 64), (64,), (31, 17, 3), (128,), (1000, 48), (10,), (1, 512), (), (7, 1, 900))


@st.composite
def domains(draw: st.DrawFn, elementwise: bool | None = None) -> Domain:
    shapes = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=10)))
    matrices = [i for i, shape in enumerate(shapes) if len(shape) == 2]
    sparse = tuple(draw(st.sets(st.sampled_from(matrices)))) if matrices else ()
    nodes = draw(st.integers(1, 4))
    ranks = draw(st.integers(1 if nodes > 1 else 2, 3))
    rates = tuple(draw(st.sampled_from((0.5, 0.956, 2.0, 10.0))) for _ in range(nodes))
    if elementwise is None:
        elementwise = draw(st.booleans())
    graph = chain_graph(shapes, sparse, draw(st.sampled_from((0, 2, 4096))))
    cluster = grid_cluster(nodes, ranks, rates)
    return domain_of(graph, cluster, optimizer=Optimizer("made", elementwise))


spaces = st.builds(
    Space,
    reduce_scatter=st.booleans(),
    hierarchical=st.booleans(),
    factors=st.booleans(),
    priority=st.booleans(),
    overlap_forward=st.booleans(),
    whole_below_bytes=st.sampled_from((0, 1000, 100_000)),
    max_parts=st.sampled_from((1, 2, 7, 40)),
    max_groups=st.sampled_from((1, 3, 20)),
    uneven_shares=st.booleans(),
    shard_methods=st.booleans(),
    idle_gathers=st.booleans(),
)

unconstrained = st.builds(
    lambda space, balance, merge: replace(space, load_balance=balance, adjacent_merge=merge),
    spaces,
    st.booleans(),
    st.booleans(),
)

lossy = (Encoding(), Encoding("fp16"), Encoding("bf16"), Encoding("powersgd", 2))

seeds = st.integers(0, 2**64 - 1)


def check_groups(domain: Domain, population: Population) -> None:
    """Groups are contiguous in gradient-ready order, of one method, option, owner and density each,
    and numbered without gaps."""
    ready = domain.variables.ready
    for index in range(len(population)):
        rows = np.arange(population.first[index], population.first[index + 1])
        last: dict[tuple[int, ...], int] = {}
        seen: set[int] = set()
        for row in rows[np.lexsort((rows, ready[population.variable[rows]]))]:
            sparse = domain.variables.sparse[population.variable[row]]
            columns = (population.method[row], population.option[row], population.server[row])
            kind, group = (*map(int, columns), int(sparse)), int(population.group[row])
            if last.get(kind) != group:
                assert group not in seen, "a group is interrupted, or spans kinds"
                seen.add(group)
            last[kind] = group
        assert seen == set(range(len(seen)))
