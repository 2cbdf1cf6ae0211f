"""What a worker trains: its optimizers, and its first iterations."""

import pytest
import torch
from torch import nn

from autosync.bundle import Bundle
from autosync.errors import InvalidInput
from autosync.optimizers import DENSE_OPTIMIZERS, OPTIMIZERS
from autosync.strategy import AllReduce
from autosync.trials.worker.replay import replay_module
from autosync.trials.worker.replay_compute import ReplayCompute, Stretch
from autosync.trials.worker.training_job import ReplayJob, make_optimizer
from tests.autosync.trials.strategies import ddp, lagging, small_domain


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_a_request_is_made(name: str) -> None:
    model = nn.Linear(2, 2)
    assert make_optimizer(name, model).param_groups[0]["params"] == list(model.parameters())
    if name in DENSE_OPTIMIZERS:
        with pytest.raises(InvalidInput, match="no sparse gradients"):
            make_optimizer(name, model, sparse=True)


class Timed(ReplayCompute):
    """A compute that notes at which batch factor each stretch runs."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.ran: list[float] = []

    def set_batch_factor(self, factor: float) -> None:
        self.factor = factor

    def run(self, stretch: Stretch) -> None:
        self.ran.append(self.factor)


def test_a_plan_that_lags_is_filled_by_iterations_that_compute_nothing() -> None:
    domain, compute = small_domain(), Timed()
    model = replay_module(domain, 1.0, 0, compute)
    signal = torch.zeros((), requires_grad=True)
    job = ReplayJob(model, make_optimizer("sgd", model), compute, signal, domain.world_size, 0)

    def factors(bundle: Bundle) -> list[set[float]]:
        job.begin("of two", bundle)
        found = []
        for _ in range(3):
            compute.ran.clear()
            job.loss(model).backward()
            found.append(set(compute.ran))
        return found

    assert factors(lagging(domain, AllReduce(0), 2)) == [{0.0}, {0.0}, {1.0}]
    assert factors(ddp(domain)) == [{1.0}] * 3
