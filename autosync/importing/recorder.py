"""Records one forward and one backward pass, on tensors without memory.

`Tracker` follows which operation is running, `Recorder` notes what each one does; the timer of
`operation_timing` is another tracker. An aten call of the forward pass is an operation unless it
is a pure view or a bare allocation. Autograd numbers its nodes in the order in which it makes
them, and makes an operation's node just before the operation is dispatched. So the thread's
sequence number at dispatch names the node, and the node that runs in backward the operation.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.flop_counter import flop_registry

from autosync.graph import ATTENTION, DType
from autosync.importing.operator_rules import FLOPS, SHAPES
from autosync.importing.recording_devices import RecordingDevice
from autosync.torch_dtypes import DTYPE_NAMES

ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


class Tracker(TorchDispatchMode):
    """Follows one forward and one backward pass.

    path: of the module that runs now. call: (module path, aten name) of the latest call.
    names, node_operation: name of every operation; operation of every autograd node (None for a
    view of no operation's output). nodes_run: the nodes in the order they ran in backward.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.paths: list[str] = []
        self.types: list[str] = []
        self.node_operation: dict[int, int | None] = {}
        self.nodes_run: list[int] = []
        self.path = ""
        self.call = ("", "")
        self.in_backward = False
        self.latest_backward: int | None = None
        self._latest: int | None = None
        self._enclosing: list[int] = []
        self._occurrences: Counter[str] = Counter()
        self._next_node = _next_node()
        self._recomputed_next: dict[int, int] = {}
        self._recomputed_nodes: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.prim.device.default:
            # Fake tensors are asked where they are between an operation's node and its dispatch.
            return self.forward_call(func, args, kwargs or {})
        self.call = (self.path, aten_name(func))
        if self.in_backward:
            operation = self._recomputed(self.call[1])
            if operation is None:
                operation = self._running()
            return self.backward_call(operation, func, args, kwargs or {})
        # The node of this call (if it has one) and nodes made since the last dispatch.
        nodes = range(self._next_node, _next_node())
        self._next_node = nodes.stop
        out = self.forward_call(func, args, kwargs or {})
        if is_operation(func, args, out):
            operation = self._enlist()
            self.forward_operation(operation, func, args, kwargs or {}, out)
        else:
            operation = self.view_of(args)
        self._assign(nodes, operation)
        self._latest = operation
        return out

    def _assign(self, nodes: range, operation: int | None) -> None:
        if not torch.is_grad_enabled():
            # Such a call makes no node: these belong to the custom function it runs in, which
            # stands with its first operation.
            self._enclosing += nodes
        else:
            for node in nodes:
                self.node_operation[node] = operation if node == nodes[-1] else self._latest
        if operation is not None:
            self.node_operation.update(dict.fromkeys(self._enclosing, operation))
            self._enclosing = []

    def start_backward(self) -> None:
        """From here on calls belong to the backward pass."""
        for node in range(self._next_node, _next_node()):
            self.node_operation[node] = self._latest
        self.in_backward = True

    def _enlist(self) -> int:
        path, kind = self.call
        base = f"{path}.{kind}" if path else kind
        self._occurrences[base] += 1
        count = self._occurrences[base]
        self.names.append(base if count == 1 else f"{base}:{count}")
        self.paths.append(path)
        self.types.append(kind)
        return len(self.names) - 1

    def _running(self) -> int | None:
        """The operation whose backward runs now; of nodes without one, the one before."""
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        operation = self.node_operation.get(number)
        if operation is not None:
            self.latest_backward = operation
        if number in self._recomputed_nodes:
            self.nodes_run.append(number)
        return self.latest_backward

    def backward_call_site(self) -> tuple[str, str]:
        """The module path of the operation whose node ran last in backward, and the aten name of
        the latest call."""
        known = (self.node_operation.get(node) for node in reversed(self.nodes_run))
        operation = next((each for each in known if each is not None), None)
        return "" if operation is None else self.paths[operation], self.call[1]

    def _recomputed(self, kind: str) -> int | None:
        """The operation that runs again, within the backward of a custom function that runs a part
        of the model once more and then its backward (a reentrant checkpoint). It runs its
        operations in the order of the forward pass, which began with the function's own."""
        node: Any = torch._C._current_autograd_node()
        if not (torch.is_grad_enabled() and isinstance(node, BackwardCFunction)):
            return None
        made = range(self._next_node, _next_node())
        self._next_node = made.stop
        function = node._sequence_nr()
        operation = self._recomputed_next.get(function, self.node_operation.get(function))
        if operation is None or self.types[operation : operation + 1] != [kind]:
            return None  # a view, say
        self._recomputed_next[function] = operation + 1
        if made:
            self.node_operation[made[-1]] = operation
            self._recomputed_nodes.add(made[-1])
        return operation

    def forward_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute any aten call of the forward pass."""
        return func(*args, **kwargs)

    def forward_operation(
        self, operation: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        """The call just executed is operation `operation`."""

    def view_of(self, args: tuple[Any, ...]) -> int | None:
        """The operation whose output a view call reads; None where unknown."""
        return len(self.names) - 1 if self.names else None

    def backward_call(
        self, operation: int | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Execute an aten call of the backward pass, on behalf of `operation`."""
        return func(*args, **kwargs)


def _next_node() -> int:
    """The number of the next autograd node this thread makes."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]  # not in the stubs


def aten_name(func: Any) -> str:
    """Kernels of attention, which every device has its own of, by the name of attention."""
    name: str = func.name() if callable(getattr(func, "name", None)) else str(func)
    kind = name.rpartition("::")[2].partition(".")[0]
    is_attention = kind.startswith("_scaled_dot_product_") and not kind.endswith("_backward")
    return ATTENTION if is_attention else kind


def is_operation(func: Any, args: tuple[Any, ...], out: Any) -> bool:
    """Whether the call computes: neither a bare allocation nor a view of its inputs."""
    if aten_name(func) in ALLOCATIONS:
        return False
    if func._schema.is_mutable:
        return True
    outputs = storages(out)
    return bool(outputs) and not outputs <= storages(args)


def storages(values: Any) -> set[int]:
    """Identity of the storage behind every dense tensor in `values`."""
    return {storage_of(tensor) for tensor in tensors(values)}


def storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """Every dense tensor in nested tuples, lists and dicts."""
    for value in tree_iter(values):
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            yield value


@contextmanager
def module_paths(module: nn.Module, tracker: Tracker) -> Iterator[None]:
    """Keep `tracker.path` at the name of the innermost module that runs."""
    stack: list[tuple[str, str]] = []
    handles = []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            stack.append((path, tracker.path))
            tracker.path = path

        return hook

    def leave(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            left: str | None = None
            while left != path:  # first those that raised within it, which were not left
                left, tracker.path = stack.pop()

        return hook

    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(enter(path)))
        handles.append(part.register_forward_hook(leave(path)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def as_written() -> Any:
    """Inside, what a model compiles in parts runs as it is written: a tracker does not see into
    compiled code."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


@dataclass(slots=True)
class Record:
    """What one operation did.

    shape: of its first output. dtype: of the first floating-point tensor that it reads, or makes
    where it reads none. products: (variable, activation rows) of each matrix product with
    a variable itself or a view of one. lookups: (variable, number of row indices) of an embedding.
    """

    inputs: set[int] = field(default_factory=set)
    variables: set[int] = field(default_factory=set)
    forward_flops: int = 0
    backward_flops: int = 0
    output_bytes: int = 0
    shape: tuple[int, ...] = ()
    dtype: DType = "float32"
    products: list[tuple[int, int]] = field(default_factory=list)
    lookups: list[tuple[int, int]] = field(default_factory=list)


class Recorder(Tracker):
    """FLOPs are counted with torch's registry, composite operators taken apart exactly as
    `torch.utils.flop_counter.FlopCounterMode` does, so totals agree with it but where
    `operator_rules` counts other ones.

    variables: index of each parameter of the module, in order.
    """

    def __init__(self, variables: list[torch.nn.Parameter], device: RecordingDevice) -> None:
        super().__init__()
        self._device = device
        self.records: list[Record] = []
        self.variable_of = {storage_of(value): i for i, value in enumerate(variables)}
        self._writer: dict[int, int] = {}
        # Storages are identified by address; all stay alive so that no address is reused.
        self._alive: list[Any] = []
        self._flops = 0
        self._nested = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._nested:
            return self._execute(func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = tree_map(self._adopted, (args, kwargs))
        if func is not torch.ops.prim.device.default:
            outer, self._nested = self._nested, True
            try:
                with self:
                    out = func.decompose(*args, **kwargs)
            finally:
                self._nested = outer
            if out is not NotImplemented:
                return out
        shapes_of = SHAPES.get(func._overloadpacket)
        run = func if shapes_of is None or self._device.has_values else shapes_of
        out = run(*args, **kwargs)
        count = FLOPS.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
        if count is not None:
            self._flops += int(count(*args, **kwargs, out_val=out))
        return out

    def forward_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._flops = 0
        out = self._execute(func, args, kwargs)
        self._alive.append((args, kwargs, out))
        return out

    def forward_operation(
        self, operation: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        outputs = list(tensors(out))
        record = Record(forward_flops=self._flops)
        for storage in storages((args, kwargs)):
            if storage in self._writer:
                record.inputs.add(self._writer[storage])
        record.variables = self._variables((args, kwargs))
        record.output_bytes = sum(tensor.numel() * tensor.element_size() for tensor in outputs)
        record.shape = tuple(outputs[0].shape) if outputs else ()
        record.dtype = _float_type([*tensors((args, kwargs)), *outputs])
        record.products = self._products(self.types[operation], args)
        if self.types[operation] in ("embedding", "_embedding_bag"):
            table, indices = args[:2]
            record.lookups = [(i, int(indices.numel())) for i in self._variables((table,))]
        self.records.append(record)
        # A variable written in place stays a variable.
        for storage in (storage_of(tensor) for tensor in outputs):
            if storage not in self.variable_of:
                self._writer[storage] = operation

    def _variables(self, values: Any) -> set[int]:
        return {self.variable_of[s] for s in storages(values) if s in self.variable_of}

    def _products(self, kind: str, args: tuple[Any, ...]) -> list[tuple[int, int]]:
        if kind not in ("mm", "addmm"):
            return []
        left, right = args[-2:]
        found = []
        if storage_of(right) in self.variable_of:
            found.append((self.variable_of[storage_of(right)], int(left.shape[0])))
        if storage_of(left) in self.variable_of:
            found.append((self.variable_of[storage_of(left)], int(right.shape[1])))
        return found

    def view_of(self, args: tuple[Any, ...]) -> int | None:
        return next((op for s in storages(args) if (op := self._writer.get(s)) is not None), None)

    def writer_of(self, tensor: torch.Tensor) -> int | None:
        return self._writer.get(storage_of(tensor))

    def backward_call(
        self, operation: int | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._flops = 0
        out = self._execute(func, args, kwargs)
        if operation is not None:
            self.records[operation].backward_flops += self._flops
        return out

    def _adopted(self, value: Any) -> Any:
        return self._device.adopted(value) if isinstance(value, torch.Tensor) else value


def _float_type(values: list[torch.Tensor]) -> DType:
    names = (DTYPE_NAMES.get(value.dtype) for value in values)
    return next((name for name in names if name is not None), "float32")
