"""A domain: all that a prediction needs. Its identity is the hash of its canonical JSON."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from autosync.cluster import Cluster, Device
from autosync.cluster.devices import DEVICE_TYPES
from autosync.documents import STRICT, UNLESS_ONE, UNLESS_ZERO, content_hash
from autosync.errors import InvalidInput
from autosync.graph import ATTENTION, ITEM_BYTES, Count, ModelGraph
from autosync.optimizers import FOR_ATTENTION, FOR_OTHERS, KINDS

MOST_ACCUMULATED = 65_536

MOST_APART = 0.25
"""Of the forward FLOPs of a profile and of a graph; other input lengths are further apart. Those of
backward depend on checkpoints and on what is frozen as well."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Compute seconds of every operation at a batch size on a device.

    forward_seconds, backward_seconds: one entry per operation of the graph; of one that not every
        iteration runs, the mean over all iterations.
    update_seconds: of one optimizer step over all variables.
    source: `measured` on that device, or `estimated` (how, in `note`).
    forward_flops: of the graph that it is of; 0 where it was not noted.
    """

    device: str
    batch_size: int
    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    update_seconds: float
    source: Literal["measured", "estimated"]
    note: str = ""
    forward_flops: Annotated[Count, UNLESS_ZERO] = 0
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def compute_seconds(self) -> float:
        return sum(self.forward_seconds) + sum(self.backward_seconds)

    def factor_on(self, device: Device) -> float:
        """The factor from this profile's seconds to those on `device`: its slowdown times the ratio
        of the published peaks of float32 of the two device types; as TF32 where both have it.

        Raises:
            InvalidInput: the profile's device is of no known type, so the two do not compare.
        """
        if device.type == self.device:
            return device.slowdown
        if self.device not in DEVICE_TYPES:
            raise InvalidInput(
                f"the profile is of device {self.device!r}, the cluster has {device.type!r}: "
                "their speeds cannot be compared.",
                thing="profile.device",
                value=self.device,
                remedy=f"Name one of {', '.join(DEVICE_TYPES)}, or profile on the cluster's "
                "device.",
            )
        mine, its = DEVICE_TYPES[self.device], DEVICE_TYPES[device.type]
        # an A100's TF32 is ten times a V100's float32, and it is that much faster in no type
        tf32 = mine.tf32 and its.tf32
        own = mine.flops_per_second("float32", tf32)
        return device.slowdown * own / its.flops_per_second("float32", tf32)


@dataclass(frozen=True, slots=True)
class Optimizer:
    """elementwise: an element's update needs only that element's gradient and state, so a shard
    can be updated on its own. state_tensors: tensors of the variable's size that it keeps."""

    name: str = FOR_OTHERS
    elementwise: bool = True
    state_tensors: int = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


def optimizer_named(name: str) -> Optimizer:
    """Raises InvalidInput where `autosync.optimizers` has none of this name."""
    kind = KINDS.get(name)
    if kind is None:
        raise InvalidInput(
            f"nobody here knows an optimizer {name[:80]!r}.",
            thing="optimizer.name",
            value=name,
            remedy=f"Use one of {', '.join(KINDS)}.",
        )
    return Optimizer(name, kind.elementwise, kind.state_tensors)


def usual_optimizer(graph: ModelGraph) -> Optimizer:
    """The default: AdamW for a model with attention, else SGD with momentum. Also SGD for sparse
    gradients, which AdamW does not support."""
    if any(variable.sparse for variable in graph.variables) or not _attends(graph):
        return optimizer_named(FOR_OTHERS)
    return optimizer_named(FOR_ATTENTION)


SOFTMAX = frozenset({"_softmax", "softmax"})
PRODUCTS = frozenset({"bmm", "baddbmm", "matmul"})


def _attends(graph: ModelGraph) -> bool:
    """Whether the graph has fused attention, or a product of a softmax (possibly after dropout)
    with something that is not a variable."""
    weights: set[int] = set()
    for index, operation in enumerate(graph.operations):
        weighted = not operation.variables and not weights.isdisjoint(operation.inputs)
        if operation.type == ATTENTION or (weighted and operation.type in PRODUCTS):
            return True
        if operation.type in SOFTMAX or (weighted and not operation.forward_flops):
            weights.add(index)
    return False


@dataclass(frozen=True)
class Domain:
    """(G, D) with the batch, the profile and the optimizer.

    batch_size: of one replica at an even share. accumulate: batches whose gradients are added up
    before an update; an iteration is all of them. The cluster carries the communication costs.
    """

    graph: ModelGraph
    cluster: Cluster
    profile: Profile
    optimizer: Optimizer = Optimizer()
    accumulate: Annotated[int, UNLESS_ONE] = 1
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __hash__(self) -> int:
        """Uses few fields, like a graph's."""
        profile = self.profile
        return hash((self.graph, self.cluster.name, profile.device, profile.update_seconds))

    def __post_init__(self) -> None:
        if not 1 <= self.accumulate <= MOST_ACCUMULATED:
            raise InvalidInput(
                f"gradients of {self.accumulate} batches cannot be added up.",
                thing="accumulate",
                value=self.accumulate,
                remedy=f"Give 1, which is an update after every batch, to {MOST_ACCUMULATED}.",
            )
        for variable in self.graph.variables:
            if len(variable.shape) > MAX_DIMS:
                raise InvalidInput(
                    f"variable {variable.name!r} has {len(variable.shape)} dimensions; "
                    f"at most {MAX_DIMS} are supported.",
                    thing=f"variable {variable.name}",
                    value=variable.shape,
                    remedy="Give it fewer, and reshape it where it is used.",
                )
        operations = len(self.graph.operations)
        for field in ("forward_seconds", "backward_seconds"):
            given = getattr(self.profile, field)
            if len(given) != operations:
                raise InvalidInput(
                    f"the profile has {len(given)} {field}, graph {self.graph.name!r} has "
                    f"{operations} operations: it belongs to another graph.",
                    thing=f"profile.{field}",
                    value=len(given),
                    remedy="Import and profile the same model with the same --autocast, or both "
                    "without.",
                )
            if odd := [seconds for seconds in given if not 0 <= seconds < 1e6]:
                raise InvalidInput(
                    f"profile.{field} holds {odd[0]}, a negative or absurd time.",
                    thing=f"profile.{field}",
                    value=odd[0],
                    remedy="Profile this graph with `autosync profile`.",
                )
        if not 0 <= (update := self.profile.update_seconds) < 1e6:
            raise InvalidInput(
                f"profile.update_seconds is {update}, a negative or absurd time.",
                thing="profile.update_seconds",
                value=update,
                remedy="State seconds of one step of the optimizer, 0 where the passes hold them.",
            )
        if self.profile.batch_size != self.graph.batch_size:
            raise InvalidInput(
                f"the profile is for batch size {self.profile.batch_size}, graph "
                f"{self.graph.name!r} for {self.graph.batch_size}.",
                thing="profile.batch_size",
                value=self.profile.batch_size,
                remedy="Import and profile the model at one batch size.",
            )
        own, flops = self.graph.forward_flops, self.profile.forward_flops
        if own and flops and abs(flops - own) > MOST_APART * own:
            raise InvalidInput(
                f"the profile is of a forward pass of {flops / 1e9:.3g} GFLOP, graph "
                f"{self.graph.name!r} of one of {own / 1e9:.3g}: its inputs are of another size.",
                thing="profile.forward_flops",
                value=flops,
                remedy="Import and profile the same function (package.module:function).",
            )

    @cached_property
    def id(self) -> str:
        return content_hash(self)

    @property
    def compute_source(self) -> Literal["measured", "estimated"]:
        """`measured` if the profile was measured on the device type of all ranks; seconds that are
        converted to another type by its published peak are an estimate."""
        same = all(d.type == self.profile.device for d in self.cluster.device_of_rank())
        return self.profile.source if same else "estimated"

    @property
    def compute_seconds(self) -> float:
        """Forward and backward of one batch on the cluster's fastest device."""
        factors = {self.profile.factor_on(d) for d in self.cluster.device_of_rank()}
        return self.profile.compute_seconds * min(factors)

    @property
    def batch_size(self) -> int:
        return self.graph.batch_size

    @property
    def world_size(self) -> int:
        return self.cluster.world_size

    @cached_property
    def variables(self) -> "VariableTable":
        return _variable_table(self)

    @cached_property
    def timing(self) -> "TimingTable":
        return _timing_table(self)


@dataclass(frozen=True, slots=True)
class VariableTable:
    """The variables as arrays, V entries each.

    size_bytes, elements i64; item_bytes i64.
    dims i64[V, 8]: the shape, filled up with 1; rank i8: dimensions.
    ready i32: position in the order in which gradients become ready.
    first_use i32: the first operation of the forward pass that consumes it.
    sparse bool; touched_rows, factor_rows i64: of all batches of an update.
    """

    size_bytes: NDArray[np.int64]
    elements: NDArray[np.int64]
    item_bytes: NDArray[np.int64]
    dims: NDArray[np.int64]
    rank: NDArray[np.int8]
    ready: NDArray[np.int32]
    first_use: NDArray[np.int32]
    sparse: NDArray[np.bool_]
    touched_rows: NDArray[np.int64]
    factor_rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TimingTable:
    """Compute at nominal speed and an even share, in seconds from the start of forward.

    forward_start f64[operations]: when each operation starts in the forward pass.
    forward_seconds, backward_seconds f64[]: the whole passes.
    ready_seconds f64[V]: when gradient i *of the ready order* exists on every rank, from the start
        of backward; expected, where not every iteration has it: a rank without it knows at the end.
    """

    forward_start: NDArray[np.float64]
    forward_seconds: float
    backward_seconds: float
    ready_seconds: NDArray[np.float64]


MAX_DIMS = 8


def _variable_table(domain: Domain) -> VariableTable:
    variables = domain.graph.variables
    dims = np.ones((len(variables), MAX_DIMS), dtype=np.int64)
    for index, variable in enumerate(variables):
        dims[index, : len(variable.shape)] = variable.shape
    ready = np.empty(len(variables), dtype=np.int32)
    ready[list(domain.graph.gradient_order)] = np.arange(len(variables))
    first_use = [uses[0] if uses else 0 for uses in domain.graph.consumers()]
    touched = np.array([variable.touched_rows for variable in variables], dtype=np.int64)
    factor_rows = np.array([variable.factor_rows for variable in variables], dtype=np.int64)
    return VariableTable(
        size_bytes=np.array([variable.size_bytes for variable in variables], dtype=np.int64),
        elements=np.array([variable.elements for variable in variables], dtype=np.int64),
        item_bytes=np.array([ITEM_BYTES[variable.dtype] for variable in variables], dtype=np.int64),
        dims=dims,
        rank=np.array([len(variable.shape) for variable in variables], dtype=np.int8),
        ready=ready,
        first_use=np.array(first_use, dtype=np.int32),
        sparse=np.array([variable.sparse for variable in variables], dtype=np.bool_),
        touched_rows=np.minimum(domain.accumulate * touched, np.maximum(touched, dims[:, 0])),
        factor_rows=domain.accumulate * factor_rows,
    )


def _timing_table(domain: Domain) -> TimingTable:
    graph, profile = domain.graph, domain.profile
    forward = np.array(profile.forward_seconds, dtype=np.float64)
    backward = np.array(profile.backward_seconds, dtype=np.float64)
    finish = np.empty_like(backward)
    order = np.array(graph.backward_order, dtype=np.int64)
    finish[order] = np.cumsum(backward[order])
    after = np.array(graph.gradient_after, dtype=np.int64)
    ready_order = np.array(graph.gradient_order, dtype=np.int64)
    frequency = np.array([variable.frequency for variable in graph.variables])
    on_every_rank = (frequency**domain.world_size)[ready_order]
    in_order = on_every_rank * finish[after[ready_order]]
    in_order += (1 - on_every_rank) * backward.sum()
    return TimingTable(
        forward_start=np.concatenate(([0.0], np.cumsum(forward)[:-1])),
        forward_seconds=float(forward.sum()),
        backward_seconds=float(backward.sum()),
        ready_seconds=np.maximum.accumulate(in_order),
    )
