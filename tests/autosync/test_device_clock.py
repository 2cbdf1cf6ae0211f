"""Moments of a GPU, which stands here as a class: its events know nothing before they are waited
for."""

import pytest
import torch

from autosync import device_clock


class Event:
    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self.reached = False

    def synchronize(self) -> None:
        self.reached = True

    def elapsed_time(self, later: "Event") -> float:
        assert self.reached
        assert later.reached, "Both events must be completed"
        return later.milliseconds - self.milliseconds


def test_moments_of_a_gpu_that_is_not_the_current_one_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script that never calls torch.cuda.set_device leaves cuda:0 the current one."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    first, *others = (Event(each) for each in (1.0, 3.0, 2.0))
    found = device_clock.seconds_since(first, others)  # type: ignore[arg-type]
    assert found == pytest.approx([2e-3, 1e-3])
