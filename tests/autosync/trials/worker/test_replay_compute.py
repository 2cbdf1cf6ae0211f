"""How long a replay's compute waits, on a clock that stands still."""

from types import SimpleNamespace

import pytest
import torch

from autosync.trials.contract import Workload
from autosync.trials.worker import replay_compute
from autosync.trials.worker.replay_compute import (
    TIMER_LATENESS_SECONDS,
    Stretch,
    WaitedCompute,
)
from autosync.trials.worker.training_job import ReplayJob, build_replay
from tests.autosync.trials.strategies import ddp, small_domain


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was asked of sleep; no time passes."""
    asked: list[float] = []
    standing = SimpleNamespace(monotonic=lambda: 0.0, sleep=asked.append)
    monkeypatch.setattr(replay_compute, "time", standing)
    return asked


def test_predicted_waits_for_swapped_activations_lengthen_compute(slept: list[float]) -> None:
    compute = WaitedCompute(slowness=2.0)
    compute.set_batch_factor(0.5)
    compute.set_slowdown(1.5)
    compute.start()
    compute.run(Stretch(0.2))
    assert slept == [pytest.approx(2.0 * 0.5 * 1.5 * 0.2 - TIMER_LATENESS_SECONDS)]


def test_a_replay_takes_a_slowdown_on_and_off_with_its_trials(slept: list[float]) -> None:
    domain = small_domain()
    job = build_replay(Workload(domain), 0)
    assert isinstance(job, ReplayJob)
    assert isinstance(job.compute, WaitedCompute)
    job.compute.slowness = 1.0
    for slowdown in (1.5, 1.0):
        job.begin("key", ddp(domain))
        job.compute.set_slowdown(slowdown)
        slept.clear()
        job.compute.start()
        job.compute.run(Stretch(0.2))
        assert slept == [pytest.approx(slowdown * 0.2 - TIMER_LATENESS_SECONDS)]


class MovingClock:
    """Time passes while it sleeps, and where it is told to."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(("of_the_replay", "left"), [(True, 0.04), (False, 0.05)])
def test_only_a_models_own_gaps_are_stalls(
    of_the_replay: bool, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device goes on while the replay does what no model does; it stands still for a wait."""
    clock = MovingClock()
    monkeypatch.setattr(replay_compute, "time", clock)
    compute = WaitedCompute()
    compute.start()
    clock.now += 0.01
    if of_the_replay:
        compute.resume()
    compute.run(Stretch(0.05))
    assert clock.slept == [pytest.approx(left - TIMER_LATENESS_SECONDS)]


def test_a_replay_resumes_between_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its autograd nodes are all made at the end of forward; a model's are made beside it."""
    job = build_replay(Workload(small_domain()), 0)
    assert isinstance(job.compute, WaitedCompute)
    told: list[str] = []
    for name in ("start", "run", "resume"):
        monkeypatch.setattr(job.compute, name, lambda *args, name=name: told.append(name))
    loss = job.model(torch.zeros((), requires_grad=True))
    assert told[0] == "start"
    assert told[-1] == "resume"
    assert told.count("resume") == 1
    loss.backward()
    assert set(told[told.index("resume") + 1 :]) == {"run"}
