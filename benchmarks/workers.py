"""The workload that benchmarks register where workers start: the replay with torch's own baselines.

The key of a trial is `MODE/anything`; the mode says who synchronizes: `plan` (what the bundle
says), `ddp_bf16` (DDP with torch's bf16 compression hook), `zero` (DDP with a
ZeroRedundancyOptimizer) or `fsdp2` (fully_shard over blocks of 25 MB).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from autosync.bundle import Bundle
from autosync.plan.plan_document import DDP_BUCKET_BYTES
from autosync.trials.contract import Workload
from autosync.trials.worker.replay import BackwardStage, GradientStage, Replay, replay_module
from autosync.trials.worker.training_job import (
    LEARNING_RATE,
    TrainingJob,
    build_replay,
    make_optimizer,
)

ZERO_OPTIMIZERS: Mapping[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.875}),
    "sgd_momentum": (torch.optim.SGD, {"momentum": 0.875}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
}
"""As `make_optimizer` makes them, for the ZeroRedundancyOptimizer to shard."""


def half_bytes(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's bf16 hook under another name: by its own name DDP refuses it without an
    accelerator, though gloo reduces bf16."""
    return bf16_compress_hook(state, bucket)


class StagedReplay(Replay):
    """A replay whose backward stages hang on the operations that own their variables, which is
    what FSDP2 needs: its parameters exist only around the forward of their module.

    Right where backward runs in the reverse of forward order, as in the benchmark's models.
    """

    def __init__(self, plain: Replay):
        nn.Module.__init__(self)
        self.compute = plain.compute
        self.head = plain.head
        self.operations = plain.operations
        owner = {
            id(parameter): (operation, name)
            for operation in plain.operations.values()
            for name, parameter in operation.named_parameters()
        }
        self.stages: dict[str, list[tuple[GradientStage, list[str]]]] = {}
        keys = {id(operation): key for key, operation in plain.operations.items()}
        for stage, parameters in plain._backward:
            operation = owner[id(parameters[0])][0] if parameters else None
            key = keys[id(operation)] if operation is not None else next(iter(self.operations))
            names = [owner[id(parameter)][1] for parameter in parameters]
            self.stages.setdefault(key, []).append((stage, names))
        for key, operation in self.operations.items():
            operation.register_forward_hook(_stage_hook(self.stages.get(key, [])))

    def forward(self, signal: Tensor) -> Tensor:
        self.compute.start()
        self.compute.run(self.head)
        for operation in self.operations.values():
            signal = operation(signal)
        return signal


def _stage_hook(stages: list[tuple[GradientStage, list[str]]]) -> Any:
    def hook(module: nn.Module, args: Any, signal: Tensor) -> Tensor:
        for stage, names in stages:
            parameters = [module.get_parameter(name) for name in names]
            signal = cast(Tensor, BackwardStage.apply(signal, stage, *parameters))  # type: ignore[no-untyped-call]
        return signal

    return hook


def blocks(modules: list[nn.Module], limit_bytes: float) -> list[list[nn.Module]]:
    """Neighbouring modules of at least `limit_bytes` together, which FSDP2 moves as one."""
    found: list[list[nn.Module]] = [[]]
    filled = 0
    for module in modules:
        if filled >= limit_bytes:
            found.append([])
            filled = 0
        found[-1].append(module)
        filled += sum(p.numel() * p.element_size() for p in module.parameters())
    return found


class Parked(nn.Module):
    """Stands in for a model that synchronizes itself, where a trial would wrap it in DDP."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


@dataclass
class BaselineJob:
    """A job under torch's own ways to synchronize, chosen by the trial's key.

    sharded: builds a copy of the job's model under `fully_shard`.
    """

    inner: TrainingJob
    sharded: Callable[[], nn.Module]
    optimizer_name: str
    mode: str = "plan"
    hooked: DistributedDataParallel | None = None
    zero: torch.optim.Optimizer | None = None
    fsdp: tuple[nn.Module, torch.optim.Optimizer, Parked] | None = None

    @property
    def scaled(self) -> bool:
        return self.inner.scaled

    @property
    def model(self) -> nn.Module:
        return self.fsdp[2] if self.mode == "fsdp2" and self.fsdp else self.inner.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        if self.mode == "fsdp2" and self.fsdp:
            return self.fsdp[1]
        return self.zero if self.mode == "zero" and self.zero else self.inner.optimizer

    def begin(self, key: str, bundle: Bundle) -> None:
        self.mode = key.partition("/")[0]
        self.inner.begin(key, bundle)
        if self.mode == "fsdp2" and self.fsdp is None:
            model = self.sharded()
            self.fsdp = model, make_optimizer(self.optimizer_name, model), Parked()
        if self.mode == "zero" and self.zero is None:
            sharded, options = ZERO_OPTIMIZERS[self.optimizer_name]
            self.zero = ZeroRedundancyOptimizer(
                self.inner.model.parameters(), sharded, lr=LEARNING_RATE, **options
            )

    def loss(self, model: nn.Module) -> Tensor:
        if self.mode == "fsdp2" and self.fsdp:
            return self.inner.loss(self.fsdp[0])
        if self.mode == "ddp_bf16" and model is not self.hooked:
            assert isinstance(model, DistributedDataParallel)
            model.register_comm_hook(None, half_bytes)
            self.hooked = model
        return self.inner.loss(model)


def build_baselines(workload: Workload, rank: int) -> BaselineJob:
    """The replay, every mode."""
    replay = build_replay(workload, rank)

    def sharded() -> nn.Module:
        plain = replay_module(workload.domain, workload.byte_scale, rank, replay.compute)
        model = StagedReplay(plain)
        limit = DDP_BUCKET_BYTES * workload.byte_scale
        return fully_sharded(model, blocks(list(model.operations.values()), limit))

    return BaselineJob(replay, sharded, workload.domain.optimizer.name)


def fully_sharded(model: nn.Module, parts: list[list[nn.Module]]) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in parts:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
