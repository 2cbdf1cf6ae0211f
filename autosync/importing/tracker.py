"""Which operation is running: shared by the recorder (tensors without memory) and the timer (CPU).

An aten call of the forward pass is an operation unless it is a pure view or a bare allocation.
Autograd numbers its nodes in the order it makes them, and makes an operation's node just before
the operation is dispatched; so the thread's sequence number at dispatch names the node, and the
node that runs during backward names the operation.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from autosync.graph import ATTENTION

LOSS_PATH = "loss"
"""Stands for the module path of what the loss function does."""

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
    stack: list[str] = []
    handles = []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            stack.append(tracker.path)
            tracker.path = path

        return hook

    def leave(*_: object) -> None:
        tracker.path = stack.pop()

    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(enter(path)))
        handles.append(part.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
