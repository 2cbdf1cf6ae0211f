"""A replay that records when its compute and its messages ran: what timelines are drawn from."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autosync.bundle import Bundle
from autosync.runtime.optimizer import ENGINE
from autosync.runtime.trace import Trace
from autosync.trials.contract import Workload
from autosync.trials.job import ReplayJob, build_replay, make_optimizer
from autosync.trials.replay import ComputeClock, replay_module


class RecordingClock(ComputeClock):
    """Also keeps (start, end) of every wait, on `time.monotonic()`."""

    def __init__(self, slowness: float) -> None:
        super().__init__(slowness)
        self.waits: list[tuple[float, float]] = []

    def compute(self, seconds: float) -> None:
        start = time.monotonic()
        super().compute(seconds)
        self.waits.append((start, time.monotonic()))


TIMELINES = "AUTOSYNC_TIMELINES"
"""Environment variable: the folder that a recording job writes `KEY.RANK.json` to."""


@dataclass
class RecordingJob:
    """The replay, with the timestamps of its compute and of the plan's messages.

    What a trial recorded is written when the next one begins. Under DDP a communication hook
    records each bucket's all-reduce.
    """

    replay: ReplayJob
    clock: RecordingClock
    rank: int
    key: str = ""
    starts: list[float] = field(default_factory=list)
    backwards: list[float] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    traced: Trace | None = None
    hooked: DistributedDataParallel | None = None
    scaled: bool = True

    @property
    def model(self) -> nn.Module:
        return self.replay.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.replay.optimizer

    def begin(self, key: str, bundle: Bundle) -> None:
        if self.key:
            self._write()
        self.key = key
        self.starts, self.backwards, self.events, self.clock.waits = [], [], [], []
        self.traced = self.hooked = None
        self.replay.begin(key, bundle)

    def loss(self, model: nn.Module) -> Tensor:
        engine = self.optimizer.__dict__.get(ENGINE)
        if engine is not None and self.traced is None:
            engine.trace = self.traced = Trace()
        if isinstance(model, DistributedDataParallel) and self.hooked is not model:
            model.register_comm_hook(None, self._bucket_hook)
            self.hooked = model
        self.starts.append(time.monotonic())
        loss = self.replay.loss(model)
        self.backwards.append(time.monotonic())
        return loss

    def _bucket_hook(
        self, state: None, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        start, index = time.monotonic(), bucket.index()
        iteration = len(self.starts) - 1
        buffer = bucket.buffer().div_(dist.get_world_size())

        def landed(future: Any) -> Tensor:
            self.events.append(
                {
                    "iteration": iteration,
                    "message": index,
                    "operation": "ALL_REDUCE",
                    "channel": "GRADIENT",
                    "start_seconds": start,
                    "end_seconds": time.monotonic(),
                    "size_bytes": buffer.numel() * buffer.element_size(),
                }
            )
            result: Tensor = future.value()[0]
            return result

        work = dist.all_reduce(buffer, async_op=True)
        assert work is not None
        return work.get_future().then(landed)

    def _write(self) -> None:
        if self.traced is not None:
            self.events = [
                {
                    "iteration": event.iteration,
                    "message": event.message,
                    "operation": event.operation.name,
                    "channel": event.channel.name,
                    "start_seconds": event.start_seconds,
                    "end_seconds": event.end_seconds,
                    "size_bytes": event.size_bytes,
                }
                for event in self.traced.events
            ]
        recorded = {
            "starts": self.starts,
            "backwards": self.backwards,
            "waits": self.clock.waits,
            "events": self.events,
        }
        name = f"{self.key.replace('/', '-')}.{self.rank}.json"
        (Path(os.environ[TIMELINES]) / name).write_text(json.dumps(recorded))


def build_recording(workload: Workload, rank: int) -> RecordingJob:
    plain = build_replay(workload, rank)
    clock = RecordingClock(plain.nominal_slowness)
    domain = workload.domain
    model = replay_module(domain, workload.byte_scale, rank, clock)
    optimizer = make_optimizer(domain.optimizer.name, model)
    replay = ReplayJob(model, optimizer, clock, plain.nominal_slowness, domain.world_size, rank)
    return RecordingJob(replay, clock, rank)
