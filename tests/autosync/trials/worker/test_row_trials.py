"""Trials of plans whose messages are factors and touched rows, and of DDP beside them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from autosync.bundle import Bundle, make_bundle
from autosync.codes import Op
from autosync.domain import Domain, Optimizer
from autosync.strategy import (
    AllGather,
    AllReduce,
    Factors,
    ParameterServer,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    split,
    whole,
)
from autosync.trials.contract import TrialRequest, Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.worker.replay import Replay
from autosync.trials.worker.replay_compute import WaitedCompute
from tests.autosync.trials.strategies import ddp
from tests.domains import chain_graph, domain_of, grid_cluster

OVERLAP = Schedule("priority", overlap_forward=True)


def domain() -> Domain:
    """Two tables; two matrices of linear layers with 4 rows a batch; biases."""
    shapes = ((400, 16), (300, 8), (64, 32), (64,), (48, 64), (48,))
    graph = chain_graph(shapes, sparse=(0, 1), factor_rows=4)
    return domain_of(graph, grid_cluster(2), 2e-4, Optimizer("momentum"))


def by_rows(schedule: Schedule, owned: bool, batches: int = 1) -> Bundle:
    """Tables gathered or spread over both owners; matrices as factors in one message."""
    where = replace(domain(), accumulate=batches)
    choices = []
    for index, variable in enumerate(where.graph.variables):
        partition = whole(variable.shape)
        shards: tuple[Synchronizer, ...] = (AllReduce(9),)
        if variable.sparse:
            shards = (AllGather(index),)
            if owned:
                partition = split(variable.shape, 0, 3)
                shards = tuple(ParameterServer(i % 2, i % 2) for i in range(3))
        elif variable.factor_rows:
            shards = (Factors(8),)
        choices.append(VariableChoice(variable.name, partition, shards))
    return make_bundle(Strategy(tuple(choices), even_replicas(2), schedule), where)


@pytest.fixture(scope="module", params=[1.0, 0.25])
def pool(request: pytest.FixtureRequest) -> Iterator[ProcessPool]:
    with LocalLauncher(repeats=0).open(Workload(domain(), byte_scale=request.param)) as made:
        yield made


def test_factors_and_rows_run_beside_ddp(pool: ProcessPool) -> None:
    """Also that the replicas end equal, which a pool checks."""
    cases = {
        "ddp": ddp(domain()),
        "gathered": by_rows(Schedule(), owned=False),
        "gathered late": by_rows(OVERLAP, owned=False),
        "owned": by_rows(Schedule(), owned=True),
        "owned late": by_rows(OVERLAP, owned=True),
    }
    operations = {m.operation for made in cases.values() for m in made.plan.messages}
    assert operations >= {Op.FACTOR_ALL_GATHER, Op.SPARSE_ALL_GATHER, Op.SPARSE_PUSH}
    for key, made in cases.items():
        result = pool.run(TrialRequest(key, made, warmup=1, iterations=3))
        assert result.error is None, (key, result.error)
        assert len(result.iteration_seconds) == 3


def test_factors_and_rows_of_several_batches() -> None:
    several = replace(domain(), accumulate=3)
    with LocalLauncher(repeats=0).open(Workload(several)) as opened:
        for key, made in (
            ("ddp", ddp(several)),
            ("gathered late", by_rows(OVERLAP, False, 3)),
            ("owned", by_rows(Schedule(), True, 3)),
        ):
            result = opened.run(TrialRequest(key, made, warmup=1, iterations=3))
            assert result.error is None, (key, result.error)


def test_batches_of_an_update_touch_other_rows() -> None:
    model = Replay(replace(domain(), accumulate=2), 1.0, 0, WaitedCompute())
    table = next(p for p in model.parameters() if p.shape == (400, 16))
    signal = torch.zeros((), requires_grad=True)
    touched = []
    for _ in range(2):
        model(signal).backward()
        assert table.grad is not None
        touched.append(set(table.grad.coalesce().indices()[0].tolist()))
    assert touched[0] < touched[1]
    assert len(touched[1]) == 2 * len(touched[0])
