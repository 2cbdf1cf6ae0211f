"""The workload that benchmarks register where workers start: any job, with what no strategy says.

The key of a trial is `MODE/anything`; the mode says who synchronizes: `plan` (what the bundle says)
or `zero` (DDP with torch's ZeroRedundancyOptimizer).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from autosync.bundle import Bundle
from autosync.trials.contract import Workload
from autosync.trials.worker.training_job import LEARNING_RATE, TrainingJob, build_replay

ZERO_OPTIMIZERS: Mapping[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.875}),
    "sgd_momentum": (torch.optim.SGD, {"momentum": 0.875}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
}
"""As `make_optimizer` makes them, for the ZeroRedundancyOptimizer to shard."""


@dataclass
class BaselineJob:
    """A job whose optimizer is chosen by the trial's key."""

    inner: TrainingJob
    optimizer_name: str
    mode: str = "plan"
    zero: torch.optim.Optimizer | None = None

    @property
    def scaled(self) -> bool:
        return self.inner.scaled

    @property
    def model(self) -> nn.Module:
        return self.inner.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.zero if self.mode == "zero" and self.zero else self.inner.optimizer

    def begin(self, key: str, bundle: Bundle) -> None:
        self.mode = key.partition("/")[0]
        self.inner.begin(key, bundle)
        if self.mode == "zero" and self.zero is None:
            sharded, options = ZERO_OPTIMIZERS[self.optimizer_name]
            self.zero = ZeroRedundancyOptimizer(
                self.inner.model.parameters(), sharded, lr=LEARNING_RATE, **options
            )

    def loss(self, model: nn.Module) -> Tensor:
        return self.inner.loss(model)


def build_baselines(workload: Workload, rank: int) -> BaselineJob:
    """The replay, every mode."""
    return BaselineJob(build_replay(workload, rank), workload.domain.optimizer.name)
