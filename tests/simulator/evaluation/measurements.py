"""A small dataset with invented seconds: what designers and the sampler make, in two domains."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from autosync.documents import to_json
from autosync.domain import Domain
from autosync.population import decode
from autosync.search.designs.design_table import DESIGNS
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.evaluation.measured_dataset import COLUMNS, write_dataset
from autosync.strategy import Strategy
from tests.domains import chain_graph, domain_of, grid_cluster

DESIGNED = (
    "ddp",
    "all_reduce_chunk128",
    "ps_load_balanced",
    "ps_one_server",
    "ps_partitioned",
    "partitioned_all_reduce",
    "zero1",
)
SAMPLED = 5


def two_domains() -> list[Domain]:
    graph = chain_graph()
    two, four = grid_cluster(2, 2), grid_cluster(4)
    clusters = [two, replace(four, name="row")]
    return [domain_of(graph, cluster) for cluster in clusters]


def strategies_of(domain: Domain) -> dict[str, Strategy]:
    """By origin."""
    made = {name: DESIGNS[name](domain) for name in DESIGNED}
    population = sample(domain, Space(), 0, SAMPLED, seed=3)
    return made | {f"sampled {i}": decode(population, i, domain) for i in range(SAMPLED)}


def write_small(folder: Path) -> list[Domain]:
    """Two passes; the second is 2 % slower. ps_load_balanced fails in the first domain."""
    domains = two_domains()
    rows = [
        row
        for number, domain in enumerate(domains)
        for place, (origin, strategy) in enumerate(strategies_of(domain).items())
        for row in _passes(
            domain,
            origin,
            strategy,
            0.1 + 0.01 * place,
            number == 0 and origin == "ps_load_balanced",
        )
    ]
    write_dataset(folder, domains, pd.DataFrame(rows, columns=list(COLUMNS)))
    return domains


def _passes(
    domain: Domain, origin: str, strategy: Strategy, seconds: float, fails: bool
) -> list[dict[str, object]]:
    return [
        {
            "domain": domain.id,
            "strategy_id": strategy.id,
            "strategy": to_json(strategy),
            "origin": origin.split()[0],
            "occasion": 1,
            "pass": number,
            "step_seconds": None if fails else seconds * (1.02 if number == 2 else 1.0),
            "spread": 0.03,
            "error": "timeout: no answer" if fails else None,
            "launcher": "invented",
            "byte_scale": 0.125,
            "time_scale": 2.0,
            "load": 0.01,
        }
        for number in (1, 2)
    ]
