"""A worker's rank between commands: what a refused trial leaves behind."""

import gc

import pytest
import torch
from torch import Tensor, nn

from autosync.bundle import Bundle
from autosync.errors import InvalidInput
from autosync.trials.trial_attachment import TrialAttachment
from autosync.trials.worker.rank import measure_iterations


class RefusingJob:
    """A training job whose loss refuses."""

    scaled = False

    def __init__(self) -> None:
        self.model: nn.Module = nn.Linear(1, 1)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def begin(self, key: str, bundle: Bundle) -> None:
        """Nothing to prepare."""

    def loss(self, model: nn.Module) -> Tensor:
        raise InvalidInput("refused on purpose.")


def test_garbage_is_collected_after_a_refused_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    job = RefusingJob()
    attached = TrialAttachment(job.model, lambda: None, lambda: None)
    assert gc.isenabled()
    with pytest.raises(InvalidInput, match="on purpose"):
        measure_iterations(job, attached, 1, 3, None, torch.device("cpu"))
    assert gc.isenabled()
