"""The model's dataflow graph G: operations, variables and the edges between them."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from autosync.documents import (
    COUNT,
    FIRST_ERROR,
    LARGEST_COUNT,
    STRICT,
    UNLESS_NO_ITEMS,
    UNLESS_ONE,
    UNLESS_ZERO,
    content_hash,
)
from autosync.errors import InvalidInput

DType = Literal["float64", "float32", "bfloat16", "float16"]
UNLESS_FLOAT32 = Field(exclude_if=lambda value: value == "float32")
"""Graphs gained an operation's type later: those of float32 keep their text and identity."""
Frequency = Annotated[float, UNLESS_ONE]
"""Share of the iterations, above 0, at most 1; 1 where the forward pass is always the same."""
Count = Annotated[int, COUNT]
ATTENTION = "scaled_dot_product_attention"
"""The type of a fused attention, whichever kernel a device has for it."""
MAX_VARIABLES = 65_535
"""Most variables: populations number them in 16 bits."""
MAX_OPERATIONS = 250_000
"""Most operations: no recorded module has more, and reading them would take gigabytes."""
MAX_SHAPE = 64
"""Most dimensions of a tensor; torch's own limit."""
ITEM_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator of the forward pass, at the graph's batch size.

    inputs: indices of the operations whose output it reads (the edges of G), all before it.
    variables: indices of the variables it consumes.
    dtype: of what it computes with; under mixed precision not that of its variables.
    frequency: share of the iterations that run it; FLOPs and bytes are of one that does.
    """

    name: str
    type: str
    forward_flops: Count
    backward_flops: Count
    output_bytes: Count
    has_batch_dimension: bool
    inputs: tuple[Count, ...] = ()
    variables: tuple[Count, ...] = ()
    dtype: Annotated[DType, UNLESS_FLOAT32] = "float32"
    frequency: Frequency = 1.0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        _check_frequency(f"operation {self.name}", self.frequency)


@dataclass(frozen=True, slots=True)
class Variable:
    """A trainable tensor.

    sparse: its gradient touches rows of axis 0 only (an embedding).
    touched_rows: rows one replica's iteration touches at the graph's batch size; 0 when dense.
    factor_rows: rows of the activation a linear layer multiplies with this weight (the K of
        Poseidon's sufficient factors), 0 where the gradient is no such product.
    frequency: share of the iterations in which it gets a gradient. Its bytes travel in all of
        them, as zeros where it gets none. touched_rows is the mean over all, factor_rows the most
        of any.
    """

    name: str
    shape: tuple[Count, ...]
    dtype: DType = "float32"
    sparse: bool = False
    touched_rows: Count = 0
    factor_rows: Count = 0
    frequency: Frequency = 1.0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_SHAPE:
            raise InvalidInput(
                f"variable {self.name!r} has {len(self.shape)} dimensions, more than {MAX_SHAPE}.",
                thing=f"variable {self.name}",
                value=len(self.shape),
            )
        if any(size < 1 for size in self.shape):
            raise InvalidInput(
                f"variable {self.name!r} has shape {self.shape}: every dimension must be positive.",
                thing=f"variable {self.name}",
                value=self.shape,
            )
        if self.size_bytes > LARGEST_COUNT:
            raise InvalidInput(
                f"variable {self.name!r} has the shape {self.shape}, which no model has.",
                thing=f"variable {self.name}",
                value=self.shape,
                remedy=f"State its shape; {LARGEST_COUNT} bytes are the most.",
            )
        if self.sparse and not (len(self.shape) >= 1 and self.touched_rows > 0):
            raise InvalidInput(
                f"variable {self.name!r} is sparse but touched_rows is {self.touched_rows}.",
                thing=f"variable {self.name}",
                value=self.touched_rows,
                remedy="State how many rows one iteration touches.",
            )
        _check_frequency(f"variable {self.name}", self.frequency)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """G, with the two orders that synchronization depends on.

    operations: in the order the forward pass runs them.
    variables: in the order the module registers them.
    backward_order: operations in the order their backward runs.
    gradient_order: variables in the order their gradients become ready.
    gradient_after: for each variable, the operation whose backward completes its gradient
        (the last of its consumers in `backward_order`, so a tied embedding is ready last).
    examples: how many example inputs it was recorded with, where its control flow depends on them.
        It then has every operation that one of them ran, at the largest size that one had.
    uncalled: modules around variables that no iteration has called, such as a list that holds
        others; of a running job, where that is known.
    frozen_bytes: of the parameters that are not trained. 0 in graphs of running jobs, whose trials
        run the model itself.
    """

    name: str
    batch_size: Count
    operations: Annotated[tuple[Operation, ...], FIRST_ERROR, Field(max_length=MAX_OPERATIONS)]
    variables: Annotated[tuple[Variable, ...], FIRST_ERROR]
    backward_order: tuple[int, ...]
    gradient_order: tuple[int, ...]
    gradient_after: tuple[int, ...]
    examples: Annotated[Count, UNLESS_ONE] = 1
    uncalled: Annotated[tuple[str, ...], UNLESS_NO_ITEMS] = ()
    frozen_bytes: Annotated[Count, UNLESS_ZERO] = 0
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            self._refuse("batch_size", self.batch_size, "must be at least 1")
        if not self.variables:
            self._refuse("variables", (), "holds no trainable variable")
        names = [variable.name for variable in self.variables]
        if len(names) > MAX_VARIABLES:
            self._refuse("variables", len(names), f"holds more than {MAX_VARIABLES} variables")
        if self.size_bytes > LARGEST_COUNT:  # sums of sizes are of 64 bits
            self._refuse("variables", self.size_bytes, "hold more bytes than any model")
        if len(set(names)) != len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            self._refuse("variables", twice, "names a variable twice")
        operations = range(len(self.operations))
        if len(operations) > MAX_OPERATIONS:
            self._refuse("operations", len(operations), f"holds more than {MAX_OPERATIONS}")
        for index, operation in enumerate(self.operations):
            self._check_operation(index, operation, len(names))
        if self.examples < 1:
            self._refuse("examples", self.examples, "must be at least 1")
        if sorted(self.gradient_order) != list(range(len(names))):
            self._refuse("gradient_order", self.gradient_order[:8], "must name each variable once")
        if sorted(self.backward_order) != list(operations):
            self._refuse("backward_order", self.backward_order[:8], "must name each operation once")
        if len(self.gradient_after) != len(names):
            self._refuse("gradient_after", len(self.gradient_after), "must have one per variable")
        for variable, operation_index in enumerate(self.gradient_after):
            if operation_index not in operations:
                self._refuse(f"gradient_after of {names[variable]}", operation_index, "is unknown")

    def __hash__(self) -> int:
        """Uses few fields, because caches call it often; equality compares all."""
        return hash((self.name, self.batch_size, len(self.operations), len(self.variables)))

    def _check_operation(self, index: int, operation: Operation, variables: int) -> None:
        where = f"operation {operation.name}"
        for other in operation.inputs:
            if not 0 <= other < len(self.operations):
                self._refuse(where, other, "reads from nowhere")
            if other >= index:
                self._refuse(where, other, "reads from an operation that does not run before it")
        for variable in operation.variables:
            if not 0 <= variable < variables:
                self._refuse(where, variable, "consumes no variable")
        counts = (operation.forward_flops, operation.backward_flops, operation.output_bytes)
        if not 0 <= min(counts) <= max(counts) <= LARGEST_COUNT:
            self._refuse(where, max(counts, key=abs), "has FLOPs or bytes that no model has")

    def _refuse(self, field: str, value: object, why: str) -> None:
        raise InvalidInput(
            f"graph {self.name!r}: {field} {why}, got {value!r}.",
            thing=field,
            value=value,
            remedy="Import the module again with `autosync import`.",
        )

    @property
    def id(self) -> str:
        return content_hash(self)

    @property
    def size_bytes(self) -> int:
        return sum(variable.size_bytes for variable in self.variables)

    @property
    def values_bytes(self) -> int:
        """Of trained and of frozen parameters."""
        return self.size_bytes + self.frozen_bytes

    @property
    def forward_flops(self) -> int:
        return sum(each.forward_flops for each in self.operations)

    @property
    def flops(self) -> int:
        """Of both passes."""
        return self.forward_flops + sum(each.backward_flops for each in self.operations)

    @property
    def parameters(self) -> int:
        return sum(variable.elements for variable in self.variables)

    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each variable, the operations that consume it, in forward order."""
        found: list[list[int]] = [[] for _ in self.variables]
        for index, operation in enumerate(self.operations):
            for variable in dict.fromkeys(operation.variables):
                found[variable].append(index)
        return tuple(tuple(operations) for operations in found)


def seen_by_count(graph: ModelGraph) -> dict[int, int]:
    """The number of operations by the number of example inputs that ran them, all inputs first."""
    counted = Counter(round(each.frequency * graph.examples) for each in graph.operations)
    return dict(sorted(counted.items(), reverse=True))


def _check_frequency(thing: str, frequency: float) -> None:
    if not 0 < frequency <= 1:
        raise InvalidInput(
            f"{thing} has frequency {frequency}, which is not above 0 and at most 1.",
            thing=thing,
            value=frequency,
            remedy="State the share of the iterations that have it; leave out what none has.",
        )
