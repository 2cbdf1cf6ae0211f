"""Trials of torch's own engines, between those of others, on the same warm workers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from autosync.bundle import make_bundle
from autosync.domain import Optimizer
from autosync.search.designs.known_designs import ddp, zero1
from autosync.search.designs.torch_engines import ddp_hooked, fsdp2, hsdp, zero2
from autosync.simulator.sharded_strategy import sharded_by
from autosync.simulator.timeline.trace_comparison import measured_iteration
from autosync.strategy import Encoding, Strategy
from autosync.torch_engine import FullyShard, Kept
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
    units = (("layers.0", "layers.1"), "layers.2")
    run(pool, "mixed", sharded_by(NODES, FullyShard(units, 2, (True, False), 2, 2)))
    run(pool, "bf16 sums", sharded_by(NODES, FullyShard(units, 4), Encoding("bf16")))
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


def test_every_engine_runs_several_batches_an_update() -> None:
    """That replicas end equal a pool checks."""
    several = replace(NODES, accumulate=3)
    engine = FullyShard(("layers.0", "layers.1", "layers.2"), 4)
    strategies = {"ddp": ddp(several), "zero1": zero1(several)} | {
        kept or "parts": sharded_by(several, replace(engine, kept_between_batches=kept))
        for kept in get_args(Kept)
    }
    with LocalLauncher(repeats=0).open(Workload(several, byte_scale=0.5)) as opened:
        for key, strategy in strategies.items():
            result = run(opened, key, strategy, record=True)
            assert result.timeline is not None
            assert result.timeline.step_seconds < max(result.iteration_seconds)
            for rank in result.timeline.ranks:
                assert {*rank.compute.phase} >= {"forward", "backward", "update"}
