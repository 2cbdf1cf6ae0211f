"""The replay workload: a module that computes nothing for exactly as long as the model would.

Its parameters are the graph's (scaled) variables; forward and backward wait out the profile and
real gradients of the right sizes appear when the graph says so. Any engine that hooks modules and
parameters runs on it as on the user's own model, torch's DDP included.
"""

import ctypes
import time
from collections.abc import Container, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from autosync.domain import Domain
from autosync.graph import ModelGraph, Variable
from autosync.runtime.factors import Take
from autosync.trials.scaling import scaled_graph

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

HIDDEN_SECONDS = 2e-4
"""Host work between two operations that a device's queue hides; longer gaps are stalls."""

TIMER_LATENESS_SECONDS = 3e-5
"""How late a sleep wakes with a timer slack of 1 ns (median on a quiet two-core machine)."""

PR_SET_TIMERSLACK = 29


class ComputeClock:
    """A device's time line: operations end at absolute deadlines, so waking late adds nothing up.

    slowness: real seconds of this rank per profiled second (time scale, slow device, share).
    """

    def __init__(self, slowness: float = 1.0) -> None:
        self.slowness = slowness
        self._deadline = 0.0
        self._left = 0.0

    def start(self) -> None:
        self._deadline = self._left = time.monotonic()

    def compute(self, seconds: float) -> None:
        """Wait until an operation of `seconds` (profiled) that starts now would be done."""
        now = time.monotonic()
        stalled = now - self._left
        if stalled > HIDDEN_SECONDS:
            self._deadline += stalled
        self._deadline += seconds * self.slowness
        rest = self._deadline - now - TIMER_LATENESS_SECONDS
        if rest > 0:
            time.sleep(rest)
        self._left = time.monotonic()


def sharpen_timer() -> None:
    """Ask the kernel for a timer slack of 1 ns: sleeps end 30 us late in place of 80."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


class SparseTable(nn.Embedding):
    """An embedding by type, so that DDP expects sparse gradients; it looks nothing up."""

    def __init__(self, variable: Variable) -> None:
        weight = torch.zeros(variable.shape, dtype=DTYPES[variable.dtype])
        rows, columns = variable.shape
        super().__init__(rows, columns, _weight=weight, sparse=True)

    def forward(self, signal: Tensor) -> Tensor:
        self.weight.dim()
        return signal


class FactorWeight(nn.Module):
    """A linear layer's weight, which gives a gradient or hands over its factors
    (`runtime.factors.HandsFactors`); it multiplies nothing."""

    def __init__(self, variable: Variable) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(variable.shape, dtype=DTYPES[variable.dtype]))
        self.take: Take | None = None

    def hand_factors(self, take: Take | None) -> None:
        self.take = take

    def forward(self, signal: Tensor) -> Tensor:
        self.weight.dim()
        return signal


class ReplayOperation(nn.Module):
    """A forward operation that owns variables, and the operations after it up to the next owner.

    What gates the operation (a hook before its forward) is so reached when all before it is done.
    """

    def __init__(self, seconds: float, clock: ComputeClock) -> None:
        super().__init__()
        self.seconds = seconds
        self._clock = clock

    def forward(self, signal: Tensor) -> Tensor:
        for owner in self.children():
            signal = owner(signal)
        for parameter in self.parameters(recurse=False):
            parameter.dim()  # an engine that records which module reads what sees a read here
        self._clock.compute(self.seconds)
        return signal


class GradientStage:
    """A stretch of the backward pass that ends with the gradients of some parameters."""

    def __init__(self, seconds: float, clock: ComputeClock, gradients: "list[GradientSource]"):
        self.seconds = seconds
        self.clock = clock
        self.gradients = gradients


class GradientSource:
    """Makes one parameter's gradient: constant values, the same in every iteration.

    rows_only: a sparse variable's gradient holds its touched rows; else it is the whole table,
        as for a synchronizer that treats the table as any tensor.

    value: of every element, different on each rank and exact in every dtype.
    """

    def __init__(self, variable: Variable, rank: int, owner: nn.Module) -> None:
        self.shape = variable.shape
        self.owner = owner
        self.factor_rows = variable.factor_rows
        self.dtype = DTYPES[variable.dtype]
        self.value = gradient_value(rank)
        self.rows_only = variable.sparse
        self._rows: Tensor | None = None
        if variable.sparse:
            chooser = torch.Generator().manual_seed(rank)
            order = torch.randperm(variable.shape[0], generator=chooser)
            self._rows = order[: variable.touched_rows].sort().values.unsqueeze(0)

    def make(self) -> Tensor | None:
        """A fresh tensor, which autograd takes over without copying; none where factors go."""
        if isinstance(self.owner, FactorWeight) and self.owner.take is not None:
            outputs, inputs = self.shape
            self.owner.take(
                torch.full((self.factor_rows, inputs), self.value, dtype=self.dtype),
                torch.ones(self.factor_rows, outputs, dtype=self.dtype),
            )
            return None
        if self._rows is None or not self.rows_only:
            return torch.full(self.shape, self.value, dtype=self.dtype)
        values = torch.full((self._rows.shape[1], self.shape[1]), self.value, dtype=self.dtype)
        return torch.sparse_coo_tensor(
            self._rows, values, self.shape, is_coalesced=True, check_invariants=False
        )


def gradient_value(rank: int) -> float:
    return float(2 ** -(6 + rank % 4))


class _Stage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, signal: Tensor, stage: GradientStage, *parameters: Tensor) -> Tensor:
        ctx.stage = stage
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *signals: Any) -> Any:
        stage = ctx.stage
        stage.clock.compute(stage.seconds)
        return signals[0], None, *(source.make() for source in stage.gradients)


class Replay(nn.Module):
    """The graph as a module: `forward(signal)` takes and returns a scalar, the loss.

    Backward runs as the graph's `backward_order` says, whatever the order of forward: the
    autograd nodes are chained at the end of forward in the reverse of that order.
    """

    def __init__(
        self,
        graph: ModelGraph,
        head_seconds: float,
        forward_seconds: Sequence[tuple[int, float]],
        stages: Sequence[tuple[float, tuple[int, ...]]],
        rank: int,
        clock: ComputeClock,
    ) -> None:
        super().__init__()
        self.clock = clock
        self.head_seconds = head_seconds
        self.operations = nn.ModuleDict(
            {str(index): ReplayOperation(seconds, clock) for index, seconds in forward_seconds}
        )
        self._own(graph)
        parameters = dict(self.named_parameters())
        sources = [
            GradientSource(variable, rank, self.get_submodule(variable.name.rpartition(".")[0]))
            for variable in graph.variables
        ]
        self._sparse = {i: sources[i] for i, v in enumerate(graph.variables) if v.sparse}
        self._backward = [
            (
                GradientStage(seconds, clock, [sources[v] for v in variables]),
                [parameters[graph.variables[v].name] for v in variables],
            )
            for seconds, variables in reversed(stages)
        ]

    def _own(self, graph: ModelGraph) -> None:
        for variable in graph.variables:
            _, operation, name, *_ = variable.name.split(".")
            owner = self.operations[operation]
            if variable.sparse:
                owner.add_module(name, SparseTable(variable))
            elif variable.factor_rows:
                owner.add_module(name, FactorWeight(variable))
            else:
                value = torch.zeros(variable.shape, dtype=DTYPES[variable.dtype])
                owner.register_parameter(name, nn.Parameter(value))

    def show_rows(self, of: Container[int]) -> None:
        """From now on the sparse variables `of` (indices) have sparse gradients, others dense."""
        for index, source in self._sparse.items():
            source.rows_only = index in of

    def forward(self, signal: Tensor) -> Tensor:
        self.clock.start()
        self.clock.compute(self.head_seconds)
        for operation in self.operations.values():
            signal = operation(signal)
        for stage, parameters in self._backward:
            signal = cast(Tensor, _Stage.apply(signal, stage, *parameters))  # type: ignore[no-untyped-call]
        return signal


def replay_module(domain: Domain, byte_scale: float, rank: int, clock: ComputeClock) -> Replay:
    """The replay of a domain's graph at a byte scale, for one rank."""
    graph = scaled_graph(domain.graph, byte_scale)
    head, forward = _forward_stretches(graph, domain.profile.forward_seconds)
    stages = _backward_stretches(graph, domain.profile.backward_seconds)
    return Replay(graph, head, forward, stages, rank, clock)


def _forward_stretches(
    graph: ModelGraph, seconds: tuple[float, ...]
) -> tuple[float, list[tuple[int, float]]]:
    """Seconds before the first owner of variables; (owner, seconds until the next owner)."""
    owners = sorted({int(variable.name.split(".")[1]) for variable in graph.variables})
    ends = [*owners[1:], len(seconds)]
    stretches = [(owner, sum(seconds[owner:end])) for owner, end in zip(owners, ends, strict=True)]
    return sum(seconds[: owners[0]]), stretches


def _backward_stretches(
    graph: ModelGraph, seconds: tuple[float, ...]
) -> list[tuple[float, tuple[int, ...]]]:
    """(seconds, variables that are ready then), in backward order."""
    ready: dict[int, list[int]] = {}
    for variable in graph.gradient_order:
        ready.setdefault(graph.gradient_after[variable], []).append(variable)
    stretches: list[tuple[float, tuple[int, ...]]] = []
    waited = 0.0
    for operation in graph.backward_order:
        waited += seconds[operation]
        if operation in ready:
            stretches.append((waited, tuple(ready[operation])))
            waited = 0.0
    if waited > 0:
        stretches.append((waited, ()))
    return stretches
