"""A database of many trials, made in seconds: documents as tunings write them, times made up.

ResNet-50 on the bundled cluster of four nodes; strategies are drawn as a search draws them. What a
worker would write row by row is inserted in bulk here, with the columns and counts that it keeps.
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import insert

from autosync.api.db.database import Database
from autosync.api.db.document_store import cluster_row, domain_rows, insert_rows, store_strategy
from autosync.api.db.tables import (
    EventRow,
    ProposalRow,
    StrategyRow,
    StrategySummaryRow,
    TrialRow,
    TuningRow,
)
from autosync.bundled_data import data_file
from autosync.cluster.cluster_file import load_cluster
from autosync.documents import to_json
from autosync.domain import Domain
from autosync.models import bundled
from autosync.population import decode
from autosync.profiling import estimate_profile
from autosync.search.designs.known_designs import all_reduce_25mb
from autosync.search.loop.outcome import DDP
from autosync.search.loop.settings import Settings
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.strategy import Strategy
from tests.api.sample import timeline
from tests.domains import domain_of

STRATEGIES = 200
"""Different ones of ResNet-50; what a tuning of more trials tries is one of six variables, under
ids of its own, so that the database does not grow by gigabytes."""
RECORDED_SHARE = 0.02
"""Of trials with a timeline: finalists record one each."""
FAILED_SHARE = 0.01
SMALL = to_json(all_reduce_25mb(domain_of()))
WORDS = "every variable all-reduced, in one message"
TRIAL_SECONDS = 0.3
"""Between one trial and the next, in events and moments."""
VERSIONS = [["torch", "2.13.0"], ["autosync", "0.1.0"], ["python", "3.11"], ["numba", "0.61"]]


@dataclass(frozen=True, slots=True)
class _Documents:
    """What rows refer to. strategies: hash, id and words do not matter to a row but for these."""

    domain_id: str
    cluster_id: str
    strategies: tuple[tuple[str, str], ...]
    timelines: tuple[str, ...]


def fill(database: Database, tunings: Sequence[int], seed: int = 1) -> list[str]:
    """A finished tuning of so many trials each; their ids. The last one runs still."""
    rng = random.Random(seed)
    documents = _store_documents(database, rng)
    began = time.time() - TRIAL_SECONDS * sum(tunings)
    ids = []
    for number, trials in enumerate(tunings):
        state = "running" if number == len(tunings) - 1 else "finished"
        ids.append(_tuning(database, documents, trials, began, state, rng))
        began += TRIAL_SECONDS * trials
    return ids


def _store_documents(database: Database, rng: random.Random) -> _Documents:
    graph = bundled("resnet50")
    cluster = load_cluster(data_file("clusters", "example-4x1.yaml"))
    domain = Domain(graph, cluster, estimate_profile(graph, cluster.fastest_device_type))
    drawn = sample(domain, Space(), 0, STRATEGIES, seed=0)
    strategies = [decode(drawn, i, domain) for i in range(STRATEGIES)]
    with database.writing() as session:
        row = cluster_row(cluster)
        insert_rows(session, [row, *domain_rows(domain)])
        known = tuple((store_strategy(session, s, domain), s.id) for s in strategies)
    return _Documents(domain.id, row.id, known, _timelines(strategies[:5], domain, rng))


def _timelines(
    strategies: Sequence[Strategy], domain: Domain, rng: random.Random
) -> tuple[str, ...]:
    return tuple(to_json(timeline(strategy, domain, rng)) for strategy in strategies)


def _tuning(
    database: Database,
    documents: _Documents,
    trials: int,
    began: float,
    state: str,
    rng: random.Random,
) -> str:
    tuning_id = f"{rng.getrandbits(128):032x}"
    rows = list(_rows(tuning_id, documents, trials, began, rng))
    invented = [
        {"hash": each, "strategy_id": each, "shards": 6, "words": WORDS, "document": SMALL}
        for each in (proposal["strategy_hash"] for proposal, _, _ in rows[STRATEGIES:])
    ]
    best = min((trial["step_seconds"] for _, trial, _ in rows if trial["step_seconds"]), default=0)
    tuning = {
        "id": tuning_id,
        "domain_id": documents.domain_id,
        "cluster_id": documents.cluster_id,
        "state": state,
        "launcher": "testbed",
        "byte_scale": 0.125,
        "time_scale": 2.0,
        "compute": "waited",
        "compute_device": "cpu",
        "simulator": "learned",
        "settings": to_json(Settings(budget=max(trials, 1))),
        "space": to_json(Space()),
        "created_at": began,
        "started_at": began,
        "finished_at": None if state == "running" else began + TRIAL_SECONDS * trials,
        "lease_until": time.time() + 1e6 if state == "running" else None,
        "phase": "search",
        "done": trials,
        "total": trials,
        "ranked": 30_000,
        "best_seconds": best,
        "ran_on": [TESTBED] if trials else [],
    }
    events = [
        {
            "tuning_id": tuning_id,
            "kind": "search",
            "message": "sampled measured",
            "done": done,
            "total": trials,
            "best_seconds": best,
            "created_at": began + TRIAL_SECONDS * done,
        }
        for done in range(1, trials + 1)
    ]
    with database.writing() as session:
        session.execute(insert(TuningRow), [tuning])
        if invented:
            session.execute(insert(StrategyRow), invented)
        for table, place in ((ProposalRow, 0), (TrialRow, 1), (StrategySummaryRow, 2)):
            if rows:
                session.execute(insert(table), [row[place] for row in rows])
        if events:
            session.execute(insert(EventRow), events)
    return tuning_id


TESTBED = "testbed (4 nodes, 25 Gbit/s shaped)"


def _rows(
    tuning_id: str, documents: _Documents, trials: int, began: float, rng: random.Random
) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """A proposal, its trial, and the strategy summed up."""
    for position in range(trials):
        strategy_hash, strategy_id = documents.strategies[position % STRATEGIES]
        if position >= STRATEGIES:
            strategy_hash = strategy_id = f"{rng.getrandbits(128):032x}"
        failed = position and rng.random() < FAILED_SHARE
        predicted = rng.uniform(0.12, 0.3)
        middle = predicted * rng.uniform(0.95, 1.3)
        seconds = [] if failed else [middle * rng.uniform(0.98, 1.02) for _ in range(5)]
        median = None if failed else float(np.median(seconds))
        recorded = not failed and rng.random() < RECORDED_SHARE
        shared = {"tuning_id": tuning_id, "position": position, "strategy_id": strategy_id}
        proposed = {
            "strategy_hash": strategy_hash,
            "origin": "sampled" if position else DDP,
            "simulator": "learned",
            "predicted_seconds": predicted,
        }
        key = f"search/{position}/{strategy_id}"
        measured = {"step_seconds": median, "spread": None if failed else 0.02}
        proposal = {
            **shared,
            **proposed,
            "key": key,
            "phase": "search",
            "round": position // 24,
            "seed": 0,
            "index": position,
            "created_at": began,
        }
        trial = {
            **shared,
            **measured,
            "key": key,
            "domain_id": documents.domain_id,
            "iteration_seconds": seconds,
            "error_kind": "timeout" if failed else None,
            "error_message": "no answer within 120 s" if failed else None,
            "error_stderr": "rank 2: ...\n" * 40 if failed else None,
            "launcher": TESTBED,
            "byte_scale": 0.125,
            "time_scale": 2.0,
            "load": 0.01,
            "overhead_seconds": 0.02,
            "peak_memory_bytes": 412_000_000,
            "sent_bytes": [38_000_000] * 4,
            "timeline": rng.choice(documents.timelines) if recorded else None,
            "versions": VERSIONS,
            "fence": 1,
            "worker": "host:1",
            "created_at": began + TRIAL_SECONDS * position,
        }
        summary = {
            **shared,
            **proposed,
            **measured,
            "sort_seconds": math.inf if median is None else median,
            "search_seconds": median,
            "confirmed": False,
            "trials": 1,
            "recorded": recorded,
            "error": "timeout: no answer within 120 s" if failed else None,
        }
        yield proposal, trial, summary
