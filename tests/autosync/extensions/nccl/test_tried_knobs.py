"""Knobs of NCCL in a tuning: on what, when, and in which processes they are tried."""

import os
from dataclasses import replace
from pathlib import Path

from autosync.bundle import with_extension
from autosync.extensions.nccl.proposals import PROPOSER, knobs_to_try
from autosync.nccl_knobs import (
    TUNER_FILE,
    TUNER_FILE_VARIABLE,
    NcclKnobs,
    NcclRange,
    environment_of,
    tuner_configuration,
)
from autosync.search.extension_proposals import ProposalRequest
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, MemoryStore
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllReduce
from autosync.trials.commands import StartWorker
from autosync.trials.contract import TrialRequest, TrialResult, Workload
from autosync.trials.worker.rank import Rank
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.trials.fake_workers import FakeWorkers
from tests.autosync.trials.strategies import ddp, mixed, small_domain
from tests.domains import chain_graph, domain_of
from tests.simulator.test_topology import cluster
from tests.simulator.worked_examples import strategy_of

DOMAIN = domain_of(chain_graph(((3000, 3000),) * 4), cluster("h100", 8, 4), 1e-3)
BASE = strategy_of(DOMAIN, AllReduce)
ALLOWED = Space(nccl_knobs=True)


def proposed(space: Space, trials: int) -> list[Candidate]:
    store = MemoryStore()
    for number in range(trials):
        key = f"search/0/{number}"
        store.record(TrialResult(key, (0.1,), 0.1, 0.0, None, "scripted", 1.0, 1.0))
    bases = [BASE, BASE.carrying(NcclKnobs(max_ctas=1))]
    request = ProposalRequest(
        DOMAIN, space, TimelineSimulator(), bases, Settings(budget=8), store=store
    )
    return PROPOSER.candidates(request)


def test_knobs_are_tried_last_and_where_they_are_allowed() -> None:
    assert proposed(ALLOWED, 3) == []
    assert proposed(Space(), 4) == []
    found = proposed(ALLOWED, 4)
    knobs = {candidate.strategy.extension(NcclKnobs) for candidate in found}
    assert knobs == {*knobs_to_try(DOMAIN)}
    seconds = [candidate.predicted_seconds for candidate in found]
    assert seconds == sorted(seconds)


def test_knobs_follow_the_cluster() -> None:
    tried = knobs_to_try(DOMAIN)
    assert {each.max_ctas for each in tried} == {0, 12, 6}
    assert NcclKnobs(pxn=False) in tried
    assert not any(each.by_size for each in tried), "ranges by size need a plugin"
    on_tcp = knobs_to_try(replace(DOMAIN, cluster=cluster("h100", 8, 4, "tcp")))
    assert {each.sockets for each in on_tcp} == {1, 4, 8, 16}


def test_ranks_start_anew_with_the_variables_of_a_strategy() -> None:
    """The runtime's own process groups take CTAs without any."""
    workers = FakeWorkers(passes=[(0.01, 0.0)] * 40)
    domain = small_domain()
    plain = ddp(domain)
    knobs = with_extension(plain, NcclKnobs(max_ctas=4))
    own = with_extension(mixed(domain), NcclKnobs(max_ctas=4))
    with workers.pool() as pool:
        for key, bundle in (("a", plain), ("b", knobs), ("c", knobs), ("d", plain), ("e", own)):
            assert pool.run(TrialRequest(key, bundle)).error is None
    set_ctas = {"NCCL_MAX_CTAS": "4"}
    assert workers.environments == [{}, {}, set_ctas, set_ctas, {}, {}]


def ranges_from(least_bytes: int) -> NcclKnobs:
    return NcclKnobs((NcclRange("all_reduce", "Ring", "LL", least_bytes),))


def test_ranks_start_anew_with_other_ranges_by_size() -> None:
    """The variables that name plugin and file stay the same."""
    workers = FakeWorkers(passes=[(0.01, 0.0)] * 40)
    small, large = ranges_from(8), ranges_from(64)
    plain = mixed(small_domain())
    with workers.pool() as pool:
        for key, knobs in (("a", small), ("b", small), ("c", large)):
            request = TrialRequest(key, with_extension(plain, knobs))
            assert pool.run(request).error is None
    assert workers.environments == [environment_of(small)] * 4
    texts = [tuner_configuration(knobs) for knobs in (small, large)]
    assert workers.tuner_configurations == [texts[0], texts[0], texts[1], texts[1]]


def tuner_file_of(rank: int, world: int, knobs: NcclKnobs) -> tuple[str, list[str]]:
    """Of a process that starts as a worker: the file's name, and what two readers find in it."""
    own, text = environment_of(knobs), tuner_configuration(knobs)
    Rank([]).start(StartWorker(1, 0, "", Workload(small_domain()), own, text))
    named = os.environ.pop(TUNER_FILE_VARIABLE)
    del os.environ["NCCL_TUNER_PLUGIN"]
    return os.readlink(named), [Path(named).read_text() for _ in range(2)]


def test_a_worker_keeps_ranges_by_size_in_the_file_that_it_names(pair: Ranks) -> None:
    knobs = ranges_from(8)
    for name, texts in pair.run(tuner_file_of, knobs):
        assert TUNER_FILE in name
        assert texts == [tuner_configuration(knobs)] * 2
