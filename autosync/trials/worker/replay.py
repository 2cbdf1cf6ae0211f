"""The replay workload: a module that computes what the model would, but learns nothing.

Its parameters are the graph's (scaled) variables; forward and backward sleep for the profiled
seconds, or run kernels of the model's shapes (`kernels`), and real gradients of the right sizes
appear when the graph says so. Any engine that hooks modules and parameters runs on it as on the
user's own model, torch's DDP and `fully_shard` included."""

import copy
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.graph import ModelGraph, Variable
from autosync.runtime.compression.factors import Take
from autosync.torch_dtypes import TORCH_DTYPES
from autosync.trials.scales import scaled_graph
from autosync.trials.worker.replay_compute import Division, ReplayCompute, Stretch, WaitedCompute

CPU = torch.device("cpu")


class SparseTable(nn.Embedding):
    """An embedding by type, so that DDP expects sparse gradients; it looks nothing up."""

    def __init__(self, variable: Variable, device: torch.device) -> None:
        weight = torch.zeros(variable.shape, dtype=TORCH_DTYPES[variable.dtype], device=device)
        rows, columns = variable.shape
        super().__init__(rows, columns, _weight=weight, sparse=True)

    def forward(self, signal: Tensor) -> Tensor:
        self.weight.dim()
        return signal


class FactorWeight(nn.Module):
    """A linear layer's weight, which gives a gradient or hands over its factors
    (`compression.factors.HandsFactors`); it multiplies nothing."""

    def __init__(self, variable: Variable, device: torch.device) -> None:
        super().__init__()
        value = torch.zeros(variable.shape, dtype=TORCH_DTYPES[variable.dtype], device=device)
        self.weight = nn.Parameter(value)
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

    def __init__(self, stretch: Stretch, compute: ReplayCompute) -> None:
        super().__init__()
        self.stretch = stretch
        self._compute = compute

    def forward(self, signal: Tensor) -> Tensor:
        for owner in self.children():
            signal = owner(signal)
        for parameter in self.parameters(recurse=False):
            parameter.dim()  # an engine that records which module reads what sees a read here
        self._compute.run(self.stretch)
        return signal


@dataclass
class GradientStage:
    """A stretch of the backward pass that ends with the gradients of some parameters."""

    stretch: Stretch
    compute: ReplayCompute
    gradients: "list[GradientSource]"


class GradientSource:
    """Makes one parameter's gradient: constant values, the same in every iteration.

    rows_only: a sparse variable's gradient holds its touched rows, which are others in each batch
        of an update while the table has some; else it is the whole table, as for a synchronizer
        that treats the table as any tensor.

    value: of every element, different on each rank and exact in every dtype.
    """

    def __init__(
        self, variable: Variable, rank: int, owner: nn.Module, device: torch.device, batches: int
    ) -> None:
        self.shape = variable.shape
        self.device = device
        self.owner = owner
        self.factor_rows = variable.factor_rows
        self.dtype = TORCH_DTYPES[variable.dtype]
        self.value = gradient_value(rank)
        self.rows_only = variable.sparse
        self._rows: list[Tensor] = []
        self._made = 0
        if variable.sparse:
            chooser = torch.Generator().manual_seed(rank)
            order = torch.randperm(variable.shape[0], generator=chooser)
            count = variable.touched_rows
            self._rows = [
                order.roll(-batch * count)[:count].sort().values.unsqueeze(0).to(device)
                for batch in range(min(batches, -(-len(order) // count)))
            ]

    def make(self) -> Tensor | None:
        """A fresh tensor, which autograd takes over without copying; none where factors go."""
        if isinstance(self.owner, FactorWeight) and self.owner.take is not None:
            outputs, inputs = self.shape
            self.owner.take(
                self._full((self.factor_rows, inputs), self.value),
                self._full((self.factor_rows, outputs), 1.0),
            )
            return None
        if not self._rows or not self.rows_only:
            return self._full(self.shape, self.value)
        rows = self._rows[self._made % len(self._rows)]
        self._made += 1
        values = self._full((rows.shape[1], self.shape[1]), self.value)
        return torch.sparse_coo_tensor(
            rows, values, self.shape, is_coalesced=True, check_invariants=False
        )

    def _full(self, shape: tuple[int, ...], value: float) -> Tensor:
        return torch.full(shape, value, dtype=self.dtype, device=self.device)


def gradient_value(rank: int) -> float:
    return float(2 ** -(6 + rank % 4))


class BackwardStage(torch.autograd.Function):
    """Backward, it computes for its stage's time and then returns the stage's gradients."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, stage: GradientStage, *parameters: Tensor) -> Tensor:
        ctx.stage = stage
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *signals: Any) -> Any:
        stage = ctx.stage
        stage.compute.run(stage.stretch)
        needed = ctx.needs_input_grad[2:]  # not those of modules that live on other ranks
        gradients = (
            source.make() if wanted else None
            for source, wanted in zip(stage.gradients, needed, strict=True)
        )
        return signals[0], None, *gradients


class Replay(nn.Module):
    """The graph as a module: `forward(signal)` takes and returns a scalar, the loss.

    Backward runs as the graph's `backward_order` says, whatever the order of forward: the
    autograd nodes are chained at the end of forward in the reverse of that order, or behind each
    operation (`attach_stages`).

    rank: whose gradients it makes. device: of its values.
    """

    def __init__(
        self,
        domain: Domain,
        byte_scale: float,
        rank: int,
        compute: ReplayCompute,
        device: torch.device = CPU,
    ) -> None:
        super().__init__()
        graph = scaled_graph(domain.graph, byte_scale)
        head, forward = _forward_stretches(graph, domain.profile.forward_seconds)
        stages = _backward_stretches(graph, domain.profile.backward_seconds)
        self.domain = domain
        self.byte_scale = byte_scale
        self.compute = compute
        self.head = head
        self.operations = nn.ModuleDict(
            {str(index): ReplayOperation(stretch, compute) for index, stretch in forward}
        )
        self._own(graph, device)
        parameters = dict(self.named_parameters())
        sources = [
            GradientSource(
                variable,
                rank,
                self.get_submodule(variable.name.rpartition(".")[0]),
                device,
                domain.accumulate,
            )
            for variable in graph.variables
        ]
        self._parameters_by_variable = [parameters[variable.name] for variable in graph.variables]
        self._sparse = {i: sources[i] for i, v in enumerate(graph.variables) if v.sparse}
        self.backward_stages = [
            (
                GradientStage(stretch, compute, [sources[v] for v in variables]),
                [parameters[graph.variables[v].name] for v in variables],
            )
            for stretch, variables in reversed(stages)
        ]

    def _own(self, graph: ModelGraph, device: torch.device) -> None:
        for variable in graph.variables:
            _, operation, name, *_ = variable.name.split(".")
            owner = self.operations[operation]
            if variable.sparse:
                owner.add_module(name, SparseTable(variable, device))
            elif variable.factor_rows:
                owner.add_module(name, FactorWeight(variable, device))
            else:
                value = torch.zeros(
                    variable.shape, dtype=TORCH_DTYPES[variable.dtype], device=device
                )
                owner.register_parameter(name, nn.Parameter(value))

    def sharded_form(
        self, units: Sequence[Sequence[str]]
    ) -> tuple[nn.Module, list[list[nn.Module]]]:
        """See `session.ShardedForm`. One operation that two units need is in the first."""
        shared = (self.compute, self.domain)
        made = copy.deepcopy(self, {id(one): one for one in shared})
        made.attach_stages()
        taken: set[str] = set()
        found: list[list[nn.Module]] = []
        for names in units:
            keys = sorted({name.split(".")[1] for name in names} - taken, key=int)
            taken.update(keys)
            found.append([made.operations[key] for key in keys])
        return made, found

    def attach_stages(self) -> None:
        """Attach to each operation its part of the backward pass.

        The passes stay as they are where backward runs in the reverse of forward order. Where it
        does not, a stage runs when the operation that owns its variables is reached; one whose
        variables several operations own computes at the last of them in forward order, which is the
        first in backward.
        """
        place = {key: number for number, key in enumerate(self.operations)}
        owner: dict[int, tuple[str, str]] = {}
        for key, operation in self.operations.items():
            for name, parameter in operation.named_parameters():
                owner[id(parameter)] = key, name
        stages: dict[str, list[tuple[GradientStage, list[str]]]] = {key: [] for key in place}
        for stage, parameters in self.backward_stages:
            held: dict[str, tuple[list[GradientSource], list[str]]] = {}
            for source, parameter in zip(stage.gradients, parameters, strict=True):
                key, name = owner[id(parameter)]
                sources, names = held.setdefault(key, ([], []))
                sources.append(source)
                names.append(name)
            last = max(held, key=lambda key: place[key], default=next(iter(place)))
            for key, (sources, names) in (held or {last: ([], [])}).items():
                seconds = stage.stretch if key == last else Stretch(0.0, backward=True)
                stages[key].append((GradientStage(seconds, stage.compute, sources), names))
        for key, operation in self.operations.items():
            operation.register_forward_hook(_stage_hook(stages[key]))
        self.backward_stages = []
        self._parameters_by_variable = []  # torch's fully_shard replaces them

    def parameters_of(self, module: str) -> list[nn.Parameter]:
        """Those that stand for the variables of a module of the model."""
        both = zip(self.domain.graph.variables, self._parameters_by_variable, strict=True)
        return [parameter for variable, parameter in both if variable.name.startswith(f"{module}.")]

    def divide(self, division: Callable[[Domain, float], Division]) -> Callable[[], None]:
        """From now on ranks divide the passes so, until what this returns is called. division: of
        the domain and the byte scale.

        Raises:
            NotSupported: its compute runs kernels.
        """
        if not isinstance(self.compute, WaitedCompute):
            raise NotSupported(
                "a replay that runs kernels computes whole batches: ranks cannot divide the model.",
                thing="workload.compute",
                value="kernels",
                remedy="Choose compute waited, or measure it in the training script.",
            )
        self.compute.division = division(self.domain, self.byte_scale)
        return partial(setattr, self.compute, "division", None)

    def show_rows(self, of: Container[int]) -> None:
        """From now on the sparse variables `of` (indices) have sparse gradients, others dense."""
        for index, source in self._sparse.items():
            source.rows_only = index in of

    def forward(self, signal: Tensor) -> Tensor:
        self.compute.start()
        self.compute.run(self.head)
        for operation in self.operations.values():
            signal = operation(signal)
        for stage, parameters in self.backward_stages:
            signal = cast(Tensor, BackwardStage.apply(signal, stage, *parameters))  # type: ignore[no-untyped-call]
        self.compute.resume()  # a model makes its autograd nodes beside its operations
        return signal


def _forward_stretches(
    graph: ModelGraph, seconds: tuple[float, ...]
) -> tuple[Stretch, list[tuple[int, Stretch]]]:
    """What comes before the first owner of variables; (owner, it and all up to the next owner)."""
    owners = sorted({int(variable.name.split(".")[1]) for variable in graph.variables})

    def stretch(start: int, end: int) -> Stretch:
        return Stretch(sum(seconds[start:end]), tuple(range(start, end)))

    ends = [*owners[1:], len(seconds)]
    owned = [(owner, stretch(owner, end)) for owner, end in zip(owners, ends, strict=True)]
    return stretch(0, owners[0]), owned


def _backward_stretches(
    graph: ModelGraph, seconds: tuple[float, ...]
) -> list[tuple[Stretch, tuple[int, ...]]]:
    """(operations, variables that are ready after them), in backward order."""
    ready: dict[int, list[int]] = {}
    for variable in graph.gradient_order:
        ready.setdefault(graph.gradient_after[variable], []).append(variable)
    stretches: list[tuple[Stretch, tuple[int, ...]]] = []
    passed: list[int] = []

    def stretch() -> Stretch:
        return Stretch(sum(seconds[i] for i in passed), tuple(passed), backward=True)

    for operation in graph.backward_order:
        passed.append(operation)
        if operation in ready:
            stretches.append((stretch(), tuple(ready[operation])))
            passed = []
    if (rest := stretch()).seconds > 0:
        stretches.append((rest, ()))
    return stretches


def _stage_hook(stages: list[tuple[GradientStage, list[str]]]) -> Any:
    """Behind an operation's forward: the first stage comes last in backward, so it is chained
    first."""

    def hook(module: nn.Module, args: Any, signal: Tensor) -> Tensor:
        for stage, names in stages:
            parameters = [module.get_parameter(name) for name in names]
            signal = cast(Tensor, BackwardStage.apply(signal, stage, *parameters))  # type: ignore[no-untyped-call]
        return signal

    return hook
