"""What a worker trains: a workload by name, built once and synchronized by plan after plan; and how
long the stretches of a replay take on one rank that trains by itself."""

import importlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from autosync.bundle import Bundle
from autosync.device_clock import Moment, clock_origin, moment_now, on_host_clock
from autosync.errors import InvalidInput, NotFound
from autosync.extensions.registry import iterations_in_flight
from autosync.optimizers import DENSE_OPTIMIZERS, OPTIMIZERS
from autosync.plan import Plan
from autosync.trials.commands import StretchesTimed
from autosync.trials.contract import Workload
from autosync.trials.worker.kernels import KernelCompute
from autosync.trials.worker.replay import CPU, Replay
from autosync.trials.worker.replay_compute import ReplayCompute, Stretch, WaitedCompute

LEARNING_RATE = 2.0**-6
"""A power of two, so that replayed updates are exact in every dtype."""

STRETCH_WARMUP = 3


class TrainingJob(Protocol):
    """A training step without its synchronization."""

    @property
    def scaled(self) -> bool:
        """Whether its variables are those of `scales.scaled_graph`, not the domain's own."""
        ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def begin(self, key: str, bundle: Bundle) -> None:
        """A trial of `bundle` starts."""
        ...

    def loss(self, model: nn.Module) -> Tensor:
        """Forward of one batch through `model`, which is this job's own or wraps it."""
        ...


Build = Callable[[Workload, int], TrainingJob]
"""Makes the job of a workload on one rank; where `workload.device` is cuda, on the current GPU."""


@dataclass
class ReplayJob:
    """See `autosync.trials.worker.replay`."""

    model: Replay
    optimizer: torch.optim.Optimizer
    compute: ReplayCompute
    signal: Tensor
    world_size: int
    rank: int
    scaled: bool = True
    _filling: int = 0  # forward passes
    _batch_factor: float = 1.0

    def begin(self, key: str, bundle: Bundle) -> None:
        """The first iterations of a plan with late updates compute nothing, so that as many updates
        are pending as the plan allows. The steady state follows at once, whether messages or
        compute limit it; else messages could fall behind for many iterations."""
        self._batch_factor = bundle.plan.shares[self.rank] * self.world_size
        self._filling = iterations_in_flight(bundle.plan.extensions)
        self._filling *= self.model.domain.accumulate
        self.compute.set_batch_factor(self._batch_factor)
        if self._filling:
            self.compute.set_batch_factor(0.0)
        self.model.show_rows(sparse_variables(bundle.plan))

    def loss(self, model: nn.Module) -> Tensor:
        if self._filling:
            self._filling -= 1
        else:
            self.compute.set_batch_factor(self._batch_factor)
        result: Tensor = model(self.signal)
        return result


def sparse_variables(plan: Plan) -> Container[int]:
    """Variables whose rows travel: torch's DDP takes sparse gradients as they are, else the
    messages say."""
    if plan.engine == "ddp":
        return range(len(plan.shards))
    return {
        plan.shards[piece.shard].variable
        for message in plan.messages
        if message.operation.sparse and not message.operation.from_owner
        for piece in plan.buckets[message.bucket]
    }


def build_replay(workload: Workload, rank: int, compute: ReplayCompute | None = None) -> ReplayJob:
    """compute: by default what the workload says."""
    domain = workload.domain
    device = current_device(workload)
    compute = compute or compute_of(workload, rank)
    model = Replay(domain, workload.byte_scale, rank, compute, device)
    sparse = any(variable.sparse for variable in domain.graph.variables)
    optimizer = make_optimizer(domain.optimizer.name, model, sparse)
    signal = torch.zeros((), requires_grad=True, device=device)
    return ReplayJob(model, optimizer, compute, signal, domain.world_size, rank)


def compute_of(workload: Workload, rank: int) -> ReplayCompute:
    """How a replay computes on a rank."""
    domain = workload.domain
    if workload.compute == "kernels":
        return KernelCompute(domain.graph, current_device(workload))
    device = domain.cluster.device_of_rank()[rank]
    slowness = workload.time_scale * domain.profile.factor_on(device)
    return WaitedCompute(slowness)


def current_device(workload: Workload) -> torch.device:
    """Of this process: host memory, or the GPU that it was given (`gpus.take_gpu`)."""
    if workload.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


MOMENTUM = partial(torch.optim.SGD, momentum=0.875)
OPTIMIZER_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": MOMENTUM,
    "sgd_momentum": MOMENTUM,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adafactor": torch.optim.Adafactor,
}


def make_optimizer(name: str, model: nn.Module, sparse: bool = False) -> torch.optim.Optimizer:
    """The optimizer a domain names. sparse: some gradients are.

    Raises:
        InvalidInput: nothing here goes by that name, or it takes no sparse gradients.
    """
    if sparse and name in DENSE_OPTIMIZERS:
        raise InvalidInput(
            f"{name} takes no sparse gradients, which variables of this graph have.",
            thing="domain.optimizer",
            value=name,
            remedy="Use sgd, momentum or adagrad, or a model with dense gradients.",
        )
    if name in OPTIMIZER_CLASSES:
        if name == "adagrad":
            # torch's own step makes sparse tensors without saying whether it checks them
            torch.sparse.check_sparse_tensor_invariants.disable()
        return OPTIMIZER_CLASSES[name](model.parameters(), lr=LEARNING_RATE)
    raise InvalidInput(
        f"a replay knows no optimizer {name!r}.",
        thing="domain.optimizer",
        value=name,
        remedy=f"Use one of {', '.join(OPTIMIZERS)}, or a workload of your own.",
    )


def builder_named(name: str, registered: list[str]) -> Build:
    """`replay`, or what was registered where the worker starts as `name=package.module:function`.

    Raises:
        InvalidInput: an entry has another form.
        NotFound: none has the name.
    """
    targets = {}
    for entry in registered:
        key, _, target = entry.partition("=")
        module, _, function = target.partition(":")
        if not (key and module and function):
            raise InvalidInput(
                f"the workload {entry!r} is not name=package.module:function.",
                thing="workloads",
                value=entry,
            )
        targets[key] = module, function
    if name in targets:
        module, function = targets[name]
        build: Build = getattr(importlib.import_module(module), function)
        return build
    if name == "replay":
        return build_replay
    raise NotFound(
        f"no workload {name!r} is registered here.",
        thing="workload",
        value=name,
        remedy=f"Registered: {', '.join(sorted(['replay', *targets]))}.",
    )


class RecordedCompute(ReplayCompute):
    """Records when each stretch begins, and computes what `inner` does."""

    def __init__(self, inner: ReplayCompute, device: torch.device) -> None:
        self._inner = inner
        self._device = device
        self.begun: list[Moment] = []
        self.stretches: list[Stretch] = []

    def set_batch_factor(self, factor: float) -> None:
        self._inner.set_batch_factor(factor)

    def start(self) -> None:
        self.begun, self.stretches = [], []
        self._inner.start()

    def resume(self) -> None:
        self._inner.resume()

    def run(self, stretch: Stretch) -> None:
        self.begun.append(moment_now(self._device))
        self.stretches.append(stretch)
        self._inner.run(stretch)


def time_stretches(
    workload: Workload, rank: int, compute: ReplayCompute, repeats: int
) -> StretchesTimed:
    """Of one rank that trains by itself, without synchronization.

    A stretch lasts until the next one begins, so it holds the gradients that it makes, and what
    the replay itself costs.
    """
    device = current_device(workload)
    noted = RecordedCompute(compute, device)
    noted.set_batch_factor(1.0)
    job = build_replay(workload, rank, noted)
    origin = clock_origin(device)
    passes = [_one_pass(job, noted) for _ in range(STRETCH_WARMUP + repeats)]
    moments = np.array([on_host_clock(origin, begun) for begun in passes[STRETCH_WARMUP:]])
    *seconds, update_seconds = np.median(np.diff(moments, axis=1), axis=0).tolist()
    return StretchesTimed(
        operations=tuple(_operation_of(stretch) for stretch in noted.stretches),
        backward=tuple(stretch.backward for stretch in noted.stretches),
        seconds=tuple(seconds),
        update_seconds=update_seconds,
        device="CPU" if device == CPU else torch.cuda.get_device_name(),
    )


def _one_pass(job: ReplayJob, noted: RecordedCompute) -> list[Moment]:
    """When each stretch begins, the update, and what comes after it. A GPU is not waited for: as
    in a trial, the host runs ahead of it."""
    device = job.signal.device
    job.optimizer.zero_grad(set_to_none=True)
    loss = job.model(job.signal)
    forwards = len(noted.begun)
    turned = moment_now(device)
    loss.backward()
    ended = moment_now(device)
    job.optimizer.step()
    updated = moment_now(device)
    begun = noted.begun
    # the first stage of backward begins with the pass, not when autograd gets to it
    return [*begun[:forwards], turned, *begun[forwards + 1 :], ended, updated]


def _operation_of(stretch: Stretch) -> int:
    """The operation that owns a forward stretch comes first in it; the one that completes the
    gradients of a backward stretch comes last. Where nothing comes before the first owner, that
    stretch is empty, and its next to nothing goes to the first operation."""
    if not stretch.operations:
        return 0
    return stretch.operations[-1 if stretch.backward else 0]
