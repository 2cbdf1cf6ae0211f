"""Everything that tunings measured, as a simulator learns from it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.document_store import load_domain, load_strategies
from autosync.api.db.tables import ProposalRow, TrialRow, TuningRow
from autosync.domain import Domain
from autosync.population import encode
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH
from autosync.simulator.extension_prediction import restates_domain
from autosync.simulator.learned.pretraining import SplitTrials, joined_trials, split_trials

FEWEST_OF_A_SOURCE = 8
"""Strategies of a domain below which its level alone is known."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where and how trials were measured: seconds compare within one of these alone.

    family: the domain, whatever its probed costs are. host: of the worker. launcher: its kind.
    """

    family: str
    host: str
    launcher: str
    byte_scale: float
    time_scale: float
    compute: str


def family_of(domain: Domain) -> str:
    """Equal for domains of which only the probed costs differ, and what else trials correct."""
    cluster = replace(domain.cluster, costs=(), overlap_slowdown=None, link_seconds_per_send=0.0)
    return replace(domain, cluster=cluster).id


def measured_sources(session: Session) -> list[SplitTrials]:
    """A source for each of the circumstances under which enough strategies were measured, in the
    order of the first trial. A strategy's seconds are the median of all its iterations in a
    tuning; picks are what the search drew and chose."""
    columns = (
        TrialRow.domain_id,
        TrialRow.worker,
        TrialRow.launcher,
        TrialRow.byte_scale,
        TrialRow.time_scale,
        TuningRow.compute,
        ProposalRow.strategy_hash,
        ProposalRow.origin,
        TrialRow.iteration_seconds,
    )
    query = (
        select(*columns)
        .join(
            ProposalRow,
            (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key),
        )
        .join(TuningRow, TuningRow.id == TrialRow.tuning_id)
        .where(TrialRow.step_seconds.is_not(None))
        .order_by(TrialRow.created_at, TrialRow.tuning_id, TrialRow.position)
    )
    domains: dict[str, Domain] = {}
    seconds: dict[Circumstances, dict[str, dict[str, list[float]]]] = {}
    found: set[str] = set()
    for row in session.execute(query):
        domain = domains.get(row.domain_id) or load_domain(session, row.domain_id)
        domains[row.domain_id] = domain
        where = Circumstances(
            family_of(domain),
            (row.worker or "").rpartition(":")[0],
            row.launcher.partition(" ")[0],
            row.byte_scale,
            row.time_scale,
            row.compute,
        )
        of_domain = seconds.setdefault(where, {}).setdefault(row.domain_id, defaultdict(list))
        of_domain[row.strategy_hash] += row.iteration_seconds
        if row.origin in FOUND_BY_SEARCH:
            found.add(row.strategy_hash)
    sources = []
    for by_domain in seconds.values():
        if (
            len({name for of_domain in by_domain.values() for name in of_domain})
            >= FEWEST_OF_A_SOURCE
        ):
            parts = [
                _split(session, domains[name], of_domain, found)
                for name, of_domain in by_domain.items()
            ]
            sources.append(joined_trials(parts))
    return sources


def _split(
    session: Session, domain: Domain, seconds: dict[str, list[float]], found: set[str]
) -> SplitTrials:
    """Of what this runtime and torch's DDP did with replicas: fully_shard and placed modules teach
    nothing about them."""
    strategies = load_strategies(session, set(seconds))
    names: Sequence[str] = sorted(
        name
        for name in seconds
        if strategies[name].engine is None and not restates_domain(strategies[name].extensions)
    )
    population = encode([strategies[name] for name in names], domain)
    labels = np.array([float(np.median(seconds[name])) for name in names])
    picked = np.array([name in found for name in names], dtype=np.bool_)
    return split_trials(domain, population, labels, picked)
