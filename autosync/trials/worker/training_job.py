"""What a worker trains: a workload by name, built once and synchronized by plan after plan; and how
long the stretches of a replay take on one rank that trains by itself."""

import importlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from autosync.bundle import Bundle
from autosync.errors import InvalidInput, NotFound
from autosync.extensions.registry import iterations_in_flight
from autosync.optimizers import DENSE_OPTIMIZERS, OPTIMIZERS
from autosync.plan import Plan
from autosync.trials.commands import StretchesTimed
from autosync.trials.contract import Workload
from autosync.trials.gpus import DeviceMoment, clock_origin, moment_now, on_host_clock
from autosync.trials.worker.kernels import KernelCompute
from autosync.trials.worker.replay import CPU, Replay, replay_module
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
    _filling: int = 0
    _batch_factor: float = 1.0

    def begin(self, key: str, bundle: Bundle) -> None:
        """The first iterations of a plan that lags compute nothing. So as many are under way as may
        be, and what follows is the steady state, whether messages or compute are its limit: if they
        began with nothing under way, messages could fall behind for many iterations."""
        self._batch_factor = bundle.plan.shares[self.rank] * self.world_size
        self._filling = iterations_in_flight(bundle.plan.extensions)
        self.compute.set_batch_factor(self._batch_factor)
        if self._filling:
            self.compute.set_batch_factor(0.0)
        self.model.show_rows(sparse_variables(bundle.plan))

    def slow_down(self, slowdown: float) -> None:
        """See `ReplayCompute.set_slowdown`."""
        self.compute.set_slowdown(slowdown)

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


def build_replay(workload: Workload, rank: int) -> ReplayJob:
    domain = workload.domain
    device = current_device(workload)
    compute = compute_of(workload, rank)
    model = replay_module(domain, workload.byte_scale, rank, compute, device)
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


DENSE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "rmsprop": torch.optim.RMSprop,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adafactor": torch.optim.Adafactor,
}
"""Of dense gradients only."""


def make_optimizer(name: str, model: nn.Module, sparse: bool = False) -> torch.optim.Optimizer:
    """The optimizer a domain names. sparse: some gradients are.

    Raises:
        InvalidInput: nothing here goes by that name, or it takes no sparse gradients.
    """
    parameters = list(model.parameters())
    if sparse and name in DENSE_OPTIMIZERS:
        raise InvalidInput(
            f"{name} takes no sparse gradients, which variables of this graph have.",
            thing="domain.optimizer",
            value=name,
            remedy="Use sgd, momentum or adagrad, or a model with dense gradients.",
        )
    match name:
        case "sgd":
            return torch.optim.SGD(parameters, lr=LEARNING_RATE)
        case "momentum" | "sgd_momentum":
            return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.875)
        case "adagrad":
            # torch's own step makes sparse tensors without saying whether it checks them
            torch.sparse.check_sparse_tensor_invariants.disable()
            return torch.optim.Adagrad(parameters, lr=LEARNING_RATE)
    if name in DENSE:
        return DENSE[name](parameters, lr=LEARNING_RATE)
    raise InvalidInput(
        f"a replay knows no optimizer {name!r}.",
        thing="domain.optimizer",
        value=name,
        remedy=f"Use one of {', '.join(OPTIMIZERS)}, or a workload of your own.",
    )


def builders(registered: list[str]) -> dict[str, Build]:
    """`replay`, and what was registered where the worker starts as `name=package.module:function`.

    Raises:
        InvalidInput: an entry has another form.
    """
    found: dict[str, Build] = {"replay": build_replay}
    for entry in registered:
        name, _, target = entry.partition("=")
        module, _, function = target.partition(":")
        if not (name and module and function):
            raise InvalidInput(
                f"the workload {entry!r} is not name=package.module:function.",
                thing="workloads",
                value=entry,
            )
        found[name] = getattr(importlib.import_module(module), function)
    return found


def find_builder(name: str, known: dict[str, Build]) -> Build:
    if name not in known:
        raise NotFound(
            f"no workload {name!r} is registered here.",
            thing="workload",
            value=name,
            remedy=f"Registered: {', '.join(sorted(known))}.",
        )
    return known[name]


class NotedCompute(ReplayCompute):
    """Notes when each stretch begins. It computes whatever `inner` does."""

    def __init__(self, inner: ReplayCompute, device: torch.device) -> None:
        self._inner = inner
        self._device = device
        self.begun: list[DeviceMoment] = []
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
    noted = NotedCompute(compute, device)
    noted.set_batch_factor(1.0)
    domain = workload.domain
    model = replay_module(domain, workload.byte_scale, rank, noted, device)
    sparse = any(variable.sparse for variable in domain.graph.variables)
    optimizer = make_optimizer(domain.optimizer.name, model, sparse)
    signal = torch.zeros((), requires_grad=True, device=device)
    origin = clock_origin(device)
    passes = [_one_pass(model, optimizer, signal, noted) for _ in range(STRETCH_WARMUP + repeats)]
    moments = np.array([on_host_clock(origin, begun) for begun in passes[STRETCH_WARMUP:]])
    *seconds, update_seconds = np.median(np.diff(moments, axis=1), axis=0).tolist()
    return StretchesTimed(
        operations=tuple(_stands_for(stretch) for stretch in noted.stretches),
        backward=tuple(stretch.backward for stretch in noted.stretches),
        seconds=tuple(seconds),
        update_seconds=update_seconds,
        device="CPU" if device == CPU else torch.cuda.get_device_name(),
    )


def _one_pass(
    model: Replay, optimizer: torch.optim.Optimizer, signal: torch.Tensor, noted: NotedCompute
) -> list[DeviceMoment]:
    """When each stretch begins, the update, and what comes after it. A GPU is not waited for: as
    in a trial, the host runs ahead of it."""
    device = signal.device
    optimizer.zero_grad(set_to_none=True)
    loss = model(signal)
    forwards = len(noted.begun)
    turned = moment_now(device)
    loss.backward()
    ended = moment_now(device)
    optimizer.step()
    updated = moment_now(device)
    begun = noted.begun
    # the first stage of backward begins with the pass, not when autograd gets to it
    return [*begun[:forwards], turned, *begun[forwards + 1 :], ended, updated]


def _stands_for(stretch: Stretch) -> int:
    """The operation that owns a forward stretch comes first in it; the one that completes the
    gradients of a backward stretch comes last. Where nothing comes before the first owner, that
    stretch is empty, and its next to nothing goes to the first operation."""
    if not stretch.operations:
        return 0
    return stretch.operations[-1 if stretch.backward else 0]
