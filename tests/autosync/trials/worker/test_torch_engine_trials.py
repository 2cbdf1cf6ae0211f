"""Trials of torch's own engines, between those of others, on the same warm workers."""

from collections.abc import Iterator

import pytest

from autosync.bundle import make_bundle
from autosync.domain import Optimizer
from autosync.search.designs.known_designs import ddp
from autosync.search.designs.torch_engines import ddp_hooked, fsdp2, hsdp, zero2
from autosync.simulator.timeline.trace_comparison import measured_iteration
from autosync.strategy import Encoding, Strategy
from autosync.trials.contract import TrialRequest, TrialResult, Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.pool.process_pool import ProcessPool
from tests.domains import domain_of, grid_cluster, layered_graph

NODES = domain_of(
    layered_graph(((64, 32), (32,), (48, 16), (16,), (8, 4))),
    grid_cluster(2, 2),
    2e-4,
    Optimizer("momentum"),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with LocalLauncher(repeats=0).open(Workload(NODES, byte_scale=0.5)) as opened:
        yield opened


def run(pool: ProcessPool, key: str, strategy: Strategy, record: bool = False) -> TrialResult:
    bundle = make_bundle(strategy, NODES)
    request = TrialRequest(key, bundle, warmup=1, iterations=3, record=record)
    result = pool.run(request)
    assert result.error is None, result.error
    assert len(result.iteration_seconds) == 3
    return result


def test_every_engine_runs_and_leaves_the_workers_as_they_were(pool: ProcessPool) -> None:
    run(pool, "before", ddp(NODES))
    for make in (fsdp2, zero2, hsdp):
        run(pool, make.__name__, make(NODES))
    for encoding in (Encoding("bf16"), Encoding("fp16")):
        run(pool, encoding.name, ddp_hooked(NODES, encoding))
    run(pool, "fsdp2 again", fsdp2(NODES))
    run(pool, "after", ddp(NODES))


def test_the_recorded_timeline_holds_compute(pool: ProcessPool) -> None:
    strategy = fsdp2(NODES)
    timeline = run(pool, "recorded", strategy, record=True).timeline
    assert timeline is not None
    trace = measured_iteration(timeline, make_bundle(strategy, NODES).plan)
    assert not trace.messages
    assert {each.phase for each in trace.compute} >= {"forward", "backward", "update"}
