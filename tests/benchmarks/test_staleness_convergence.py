"""The arithmetic of the table; training itself is the runtime's tests'."""

import numpy as np
import pytest
import torch

from benchmarks.staleness.convergence import LossCurve, Setting, line, summarized
from benchmarks.staleness.learning_tasks import TASKS

SETTING = Setting("MLP, SGD", 4, stragglers=True, seed=0)


def run(*losses: float) -> LossCurve:
    count = len(losses)
    iterations = tuple(10 * (i + 1) for i in range(count))
    return LossCurve(iterations, tuple(0.1 * i for i in iterations), losses, 1.5)


def test_a_target_is_reached_where_the_loss_stays_below() -> None:
    assert run(3.0, 1.0, 2.0, 1.0, 1.0).reached(1.5) == 3
    assert run(3.0, 2.0, 1.0).reached(1.5) == 2
    assert run(3.0, 2.0, float("nan")).reached(1.5) is None


def test_most_seeds_decide_whether_the_target_is_reached() -> None:
    good, bad = run(3.0, 1.0, 1.0), run(3.0, 3.0, 3.0)
    row = summarized(SETTING, [good, bad, good], 1.5)
    assert row.iterations == 20
    assert row.seconds == pytest.approx(2.0)
    assert row.step_seconds == pytest.approx(0.1)
    assert summarized(SETTING, [bad, bad, good], 1.5).iterations is None
    assert "| never |" in line(summarized(SETTING, [bad], 1.5))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_learns_by_its_own_rate(name: str) -> None:
    torch.manual_seed(0)
    task, rng = TASKS[name], np.random.default_rng(0)
    model = task.model()
    optimizer = task.optimizer(model)
    before = task.loss(model)
    for _ in range(300):
        optimizer.zero_grad()
        task.batch_loss(model, rng).backward()
        optimizer.step()
    assert task.loss(model) < 0.9 * before
