"""The compiled compiler gives what the plain one gives."""

import dataclasses

import numpy as np

from autosync.plan import compile_plans
from autosync.population import encode
from autosync.simulator.numba_compiler import compile_plans_fast
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, random_strategy


def test_both_compilers_give_the_same_table() -> None:
    graph = chain_graph(((64, 32), (300, 7), (128, 64), (33,), (10, 128)), (1,), factor_rows=4)
    domain = domain_of(graph, cluster_of(2, 2))
    rng = np.random.default_rng(7)
    population = encode([random_strategy(domain, rng) for _ in range(200)], domain)
    plain, fast = compile_plans(population, domain), compile_plans_fast(population, domain)
    assert plain.messages > 1000
    for field in dataclasses.fields(plain):
        one, other = getattr(plain, field.name), getattr(fast, field.name)
        if field.name == "teams":
            assert one == other
        else:
            np.testing.assert_array_equal(one, other)
