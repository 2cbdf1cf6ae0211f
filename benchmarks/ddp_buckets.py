"""A replay under torch's DDP that notes when each bucket's all-reduce ran, which DDP itself does
not say: for pictures. The hook that notes it costs some time, so nothing is measured with it."""

import json
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from autosync.bundle import Bundle
from autosync.trials.contract import Workload
from autosync.trials.worker.training_job import ReplayJob, build_replay

BUCKETS = "AUTOSYNC_BUCKETS"
"""Environment variable: the folder that a job writes `KEY.RANK.json` to."""


@dataclass
class BucketsJob:
    """What a trial noted is written when the next one begins: of every bucket the seconds from the
    forward pass's start until its all-reduce was issued and until it had landed, medians over the
    iterations."""

    replay: ReplayJob
    rank: int
    key: str = ""
    forward_seconds: float = 0.0
    moments: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    hooked: DistributedDataParallel | None = None
    scaled: bool = True

    @property
    def model(self) -> nn.Module:
        return self.replay.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.replay.optimizer

    def begin(self, key: str, bundle: Bundle) -> None:
        if self.moments:
            self._write()
        self.key, self.moments, self.hooked = key, {}, None
        self.replay.begin(key, bundle)

    def loss(self, model: nn.Module) -> Tensor:
        if isinstance(model, DistributedDataParallel) and self.hooked is not model:
            model.register_comm_hook(None, self._reduced)
            self.hooked = model
        self.forward_seconds = time.monotonic()
        return self.replay.loss(model)

    def _reduced(self, state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        begun, index, forward = time.monotonic(), bucket.index(), self.forward_seconds
        buffer = bucket.buffer().div_(dist.get_world_size())

        def landed(future: Any) -> Tensor:
            spans = self.moments.setdefault(index, [])
            spans.append((begun - forward, time.monotonic() - forward))
            result: Tensor = future.value()[0]
            return result

        work = dist.all_reduce(buffer, async_op=True)
        assert work is not None
        reduced: torch.futures.Future[Tensor] = work.get_future().then(landed)
        return reduced

    def _write(self) -> None:
        spans = [
            [statistics.median(column) for column in zip(*self.moments[index], strict=True)]
            for index in sorted(self.moments)
        ]
        name = f"{self.key.replace('/', '-')}.{self.rank}.json"
        (Path(os.environ[BUCKETS]) / name).write_text(json.dumps(spans))


def build_ddp_buckets(workload: Workload, rank: int) -> BucketsJob:
    return BucketsJob(build_replay(workload, rank), rank)
