"""What tunings measured, read from the database as plain data, and as sources that a simulator
learns from.

Reading is short transactions and no parsing, so that nobody waits for it; the rest is for the
process that trains.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Select, not_, select, tuple_

from autosync.api.db.database import Database
from autosync.api.db.tables import (
    DomainRow,
    GraphRow,
    ProposalRow,
    StrategyRow,
    TrialRow,
    TuningRow,
)
from autosync.cluster import Backend, Cluster
from autosync.documents import content_hash, from_json
from autosync.domain import Domain, Optimizer, Profile
from autosync.errors import AutosyncError
from autosync.graph import ModelGraph
from autosync.population import encode
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH
from autosync.simulator.extension_prediction import restates_domain
from autosync.simulator.learned.training import SplitTrials, joined_trials, split_trials
from autosync.strategy import Strategy
from autosync.trials.request_names import GPU_IN_TURNS, UNSHAPED

FEWEST_OF_A_SOURCE = 8
"""Strategies of a domain below which its level alone is known."""
MOST_TRIALS = 10_000
"""The newest; their strategies are some hundred MB."""
ROWS, DOCUMENTS = 2_000, 100
"""That a transaction reads, at most."""
NOT_THE_CLUSTERS = (UNSHAPED, GPU_IN_TURNS)
"""In the description of a pool whose seconds are not those of the cluster."""


@dataclass(frozen=True, slots=True)
class MeasuredTrial:
    """found: whether a search drew and chose the strategy."""

    domain_id: str
    host: str
    launcher: str
    byte_scale: float
    time_scale: float
    compute: str
    device: str
    strategy_hash: str
    found: bool
    iteration_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DomainTexts:
    """The documents of a domain as they are stored. graph_id: of `MeasuredTrials.graphs`."""

    graph_id: str
    cluster: str
    profile: str
    optimizer: str


@dataclass(frozen=True, slots=True)
class MeasuredTrials:
    """trials: in the order in which they were measured. domains, graphs, strategies: documents by
    their keys."""

    trials: tuple[MeasuredTrial, ...]
    domains: Mapping[str, DomainTexts]
    graphs: Mapping[str, str]
    strategies: Mapping[str, str]

    def domain(self, key: str) -> Domain:
        texts = self.domains[key]
        return Domain(
            graph=from_json(ModelGraph, self.graphs[texts.graph_id]),
            cluster=from_json(Cluster, texts.cluster),
            profile=from_json(Profile, texts.profile),
            optimizer=from_json(Optimizer, texts.optimizer),
        )


def read_measured_trials(database: Database) -> MeasuredTrials:
    trials = tuple(reversed(tuple(_newest_trials(database))))
    columns = (DomainRow.graph_id, DomainRow.cluster, DomainRow.profile, DomainRow.optimizer)
    domain_ids = {trial.domain_id for trial in trials}
    domains = {
        key: DomainTexts(*texts)
        for key, *texts in _documents(database, DomainRow.id, columns, domain_ids)
    }
    graph_ids = {each.graph_id for each in domains.values()}
    graphs = dict(_documents(database, GraphRow.id, (GraphRow.document,), graph_ids))
    hashes = {trial.strategy_hash for trial in trials}
    strategies = dict(_documents(database, StrategyRow.hash, (StrategyRow.document,), hashes))
    there = tuple(  # what was removed meanwhile is left out
        trial
        for trial in trials
        if trial.domain_id in domains and trial.strategy_hash in strategies
    )
    return MeasuredTrials(there, domains, graphs, strategies)


_KEY = (TrialRow.created_at, TrialRow.tuning_id, TrialRow.position)


def _newest_trials(database: Database) -> Iterator[MeasuredTrial]:
    """The newest first. Updates of several batches are left out: residuals of several domains
    compare on the seconds of iterations with one. So is what does not stand for the cluster: trials
    over this machine's own links, and of ranks that take turns on a GPU."""
    columns: tuple[Any, ...] = (
        *_KEY,
        TrialRow.domain_id,
        TrialRow.worker,
        TrialRow.launcher,
        TrialRow.byte_scale,
        TrialRow.time_scale,
        TuningRow.compute,
        TuningRow.compute_device,
        ProposalRow.strategy_hash,
        ProposalRow.origin,
        TrialRow.iteration_seconds,
    )
    query: Select[Any] = (
        select(*columns)
        .join(
            ProposalRow,
            (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key),
        )
        .join(TuningRow, TuningRow.id == TrialRow.tuning_id)
        .join(DomainRow, DomainRow.id == TrialRow.domain_id)
        .where(
            TrialRow.step_seconds.is_not(None),
            DomainRow.accumulate == 1,
            *(not_(TrialRow.launcher.contains(words)) for words in NOT_THE_CLUSTERS),
        )
        .order_by(*(column.desc() for column in _KEY))
        .limit(ROWS)
    )
    read, before = 0, None
    while read < MOST_TRIALS:
        page = query if before is None else query.where(tuple_(*_KEY) < before)
        with database.reading() as session:
            rows = session.execute(page).all()
        for row in rows:
            before = tuple(row[:3])
            yield MeasuredTrial(
                row.domain_id,
                (row.worker or "").rpartition(":")[0],
                row.launcher.partition(" ")[0],
                row.byte_scale,
                row.time_scale,
                row.compute,
                row.compute_device,
                row.strategy_hash,
                row.origin in FOUND_BY_SEARCH,
                tuple(row.iteration_seconds),
            )
        read += len(rows)
        if len(rows) < ROWS:
            return


def _documents(
    database: Database, key: Any, columns: Sequence[Any], wanted: Iterable[str]
) -> Iterator[Any]:
    """Of these keys, each with its columns."""
    keys = sorted(wanted)
    for first in range(0, len(keys), DOCUMENTS):
        query = select(key, *columns).where(key.in_(keys[first : first + DOCUMENTS]))
        with database.reading() as session:
            rows = session.execute(query).all()
        yield from rows


def without_refused(measured: MeasuredTrials) -> tuple[MeasuredTrials, str]:
    """Without the trials whose stored documents this version of AutoSync refuses, as those that an
    earlier one stored may be; and in words what was left out, empty where nothing was."""
    refused: dict[str, str] = {}
    for key in measured.domains:
        try:
            measured.domain(key)
        except AutosyncError as error:
            refused[key] = f"domain {key}: {error.message}"
    for key, document in measured.strategies.items():
        try:
            from_json(Strategy, document)
        except AutosyncError as error:
            refused[key] = f"strategy {key}: {error.message}"
    if not refused:
        return measured, ""
    trials = tuple(
        trial
        for trial in measured.trials
        if trial.domain_id not in refused and trial.strategy_hash not in refused
    )
    left_out = len(measured.trials) - len(trials)
    return (
        replace(measured, trials=trials),
        f"trials left out since this version of AutoSync refuses what they ran: {left_out}. "
        f"Refused documents: {len(refused)}, the first is {next(iter(refused.values()))}",
    )


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
    return replace(domain, cluster=domain.cluster.without_measured_costs()).id


Seconds = dict[str, list[float]]
"""Of all iterations, by the hash of the strategy's document."""


@dataclass(frozen=True, slots=True)
class SourceTrials:
    """What is measured under the same circumstances: by domain, and which strategies searches
    found."""

    where: Circumstances
    seconds: Mapping[str, Seconds]
    found: frozenset[str]


def source_trials(measured: MeasuredTrials) -> list[SourceTrials]:
    """For each of the circumstances under which enough strategies were measured, in the order of
    the first trial. What gloo sent in host memory on a cluster of NCCL is left out."""
    families: dict[str, str] = {}
    backends: dict[str, Backend] = {}
    seconds: dict[Circumstances, dict[str, Seconds]] = {}
    found: dict[Circumstances, set[str]] = defaultdict(set)
    for trial in measured.trials:
        key = trial.domain_id
        if key not in families:
            domain = measured.domain(key)
            families[key], backends[key] = family_of(domain), domain.cluster.backend
        if backends[key] == "nccl" and trial.device == "cpu":
            continue
        where = Circumstances(
            families[key],
            trial.host,
            trial.launcher,
            trial.byte_scale,
            trial.time_scale,
            trial.compute,
        )
        of_domain = seconds.setdefault(where, {}).setdefault(key, defaultdict(list))
        of_domain[trial.strategy_hash] += trial.iteration_seconds
        if trial.found:
            found[where].add(trial.strategy_hash)
    return [
        SourceTrials(where, by_domain, frozenset(found[where]))
        for where, by_domain in seconds.items()
        if len({name for of_domain in by_domain.values() for name in of_domain})
        >= FEWEST_OF_A_SOURCE
    ]


def measured_hash(sources: Sequence[SourceTrials]) -> str:
    """Changes with every trial of a source; 32 hex digits."""
    return content_hash(
        [[asdict(each.where), dict(each.seconds), sorted(each.found)] for each in sources]
    )


def measured_sources(
    measured: MeasuredTrials, sources: Sequence[SourceTrials]
) -> list[SplitTrials]:
    """What a simulator learns from. A strategy's seconds are the median of all its iterations in a
    tuning; picks are what the search drew and chose. Sources in which too few strategies teach
    anything are left out."""
    split = []
    for source in sources:
        teaching = {key: _teaching(measured, source.seconds[key]) for key in source.seconds}
        names = {name for of_domain in teaching.values() for name in of_domain}
        if len(names) < FEWEST_OF_A_SOURCE:
            continue
        parts = [
            _split(measured.domain(key), of_domain, source.seconds[key], source.found)
            for key, of_domain in teaching.items()
            if of_domain
        ]
        joined = joined_trials(parts)
        if not joined.held_out.all():
            split.append(joined)
    return split


def _teaching(measured: MeasuredTrials, seconds: Seconds) -> dict[str, Strategy]:
    """What this runtime and torch's DDP did with replicas: fully_shard and placed modules teach
    nothing about them."""
    strategies = {name: from_json(Strategy, measured.strategies[name]) for name in sorted(seconds)}
    return {
        name: strategy
        for name, strategy in strategies.items()
        if strategy.engine is None and not restates_domain(strategy.extensions)
    }


def _split(
    domain: Domain, strategies: Mapping[str, Strategy], seconds: Seconds, found: frozenset[str]
) -> SplitTrials:
    """strategies: at least one."""
    names = list(strategies)
    population = encode([strategies[name] for name in names], domain)
    labels = np.array([float(np.median(seconds[name])) for name in names])
    picked = np.array([name in found for name in names], dtype=np.bool_)
    return split_trials(domain, population, labels, picked)
