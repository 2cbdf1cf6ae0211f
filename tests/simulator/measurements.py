"""Datasets with invented seconds: what designers and the sampler make in two domains, or sampled
strategies of a domain of one bandwidth."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from autosync.documents import to_json
from autosync.domain import Domain
from autosync.population import decode
from autosync.search.designs.design_table import DESIGNS
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.runtime_dataset import COLUMNS, MeasuredDomain, write_dataset
from autosync.strategy import Strategy
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.learned.worlds import invented_seconds, small_domain, some_strategies

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
    rows = []
    for number, domain in enumerate(domains):
        for place, (origin, strategy) in enumerate(strategies_of(domain).items()):
            first = 0.1 + 0.01 * place
            fails = number == 0 and origin == "ps_load_balanced"
            for turn, seconds in ((1, first), (2, 1.02 * first)):
                rows.append(_row(domain, origin, strategy, turn, None if fails else seconds))
    write_dataset(folder, domains, pd.DataFrame(rows, columns=list(COLUMNS)))
    return domains


def measured(gbps: float, seed: int, count: int = 60) -> MeasuredDomain:
    """Two passes of sampled strategies."""
    domain = small_domain(gbps, layers=3)
    population = some_strategies(domain, count, seed)
    first, second = (invented_seconds(domain, population, seed=s) for s in (10, 11))
    return MeasuredDomain(domain, population, first, second)


def rows_of(each: MeasuredDomain) -> pd.DataFrame:
    assert each.second_seconds is not None
    rows = [
        _row(each.domain, "sampled", decode(each.population, index, each.domain), number, second)
        for number, seconds in ((1, each.step_seconds), (2, each.second_seconds))
        for index, second in enumerate(seconds)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def write(folder: Path, domains: list[MeasuredDomain]) -> pd.DataFrame:
    table = pd.concat([rows_of(each) for each in domains], ignore_index=True)
    write_dataset(folder, [each.domain for each in domains], table)
    return table


def _row(
    domain: Domain, origin: str, strategy: Strategy, number: int, seconds: float | None
) -> dict[str, object]:
    """A pass that was emulated at an eighth of the bytes and half of the speed."""
    return {
        "domain": domain.id,
        "strategy_id": strategy.id,
        "strategy": to_json(strategy),
        "origin": origin.split()[0],
        "occasion": 1,
        "pass": number,
        "step_seconds": seconds,
        "spread": 0.03,
        "error": "timeout: no answer" if seconds is None else None,
        "launcher": "invented",
        "byte_scale": 0.125,
        "time_scale": 2.0,
        "load": 0.01,
    }
