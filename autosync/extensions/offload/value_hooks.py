"""Hooks of the modules that read swapped values: these are on the device while such a module's
forward pass runs, and while it is asked for its state."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter
from torch.utils.hooks import RemovableHandle

from autosync.extensions.offload.swapped_pass import SwappedPass
from autosync.extensions.offload.swapped_values import SwappedValues
from autosync.runtime.execution.pending import READS_NO_VALUE

NO_READS = READS_NO_VALUE | {
    Tensor._version.__get__,  # type: ignore[attr-defined]  # torch says int
    Tensor.untyped_storage,
    Tensor.is_contiguous,
    Tensor.is_conj,
    Tensor.is_neg,
    Tensor.stride,
    Tensor.storage_offset,
}
"""What passes of their own ask of a parameter, and forward passes of its form alone."""


class ValueHooks:
    """current: the pass that goes on. entered: forward passes of the whole model that run now, the
    outermost first; None stands for one without gradients."""

    def __init__(
        self,
        model: nn.Module,
        values: SwappedValues,
        current: Callable[[], SwappedPass | None],
        entered: Sequence[object | None],
    ) -> None:
        self._model = model
        self._values = values
        self._current = current
        self._entered = entered
        self._running: list[nn.Module] = []
        self._handles: dict[nn.Module, list[RemovableHandle]] = {}

    def install(self) -> None:
        """On modules that have none yet. Before the hooks that others have there, which may make
        something of a weight; on the model itself behind the one that begins a pass."""
        if not self._values.tensors:
            return
        for module in (self._model, *self._values.readers):
            if module not in self._handles:
                prepend = module is not self._model
                self._handles[module] = [
                    module.register_forward_pre_hook(self._before_forward(), prepend=prepend),
                    module.register_forward_hook(self._after_forward(), always_call=True),
                    module.register_state_dict_pre_hook(self._before_access()),
                    module.register_load_state_dict_pre_hook(self._before_access()),
                ]

    def remove(self) -> None:
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()

    def noticing_reads(self) -> "NoticedReads":
        """Within, a value that is read outside of the module that owns it is on the device, and
        from then on before the forward pass of the module with hooks that reads it."""
        return NoticedReads(self._read_apart)

    def _read_apart(self, parameter: nn.Parameter) -> None:
        value, current = self._values.of(parameter), self._current()
        if value is None or value.users or current is None:
            return
        reader = self._running[-1] if self._running else self._model
        self._values.add_reader(reader, value)
        value.users += 1  # until the reader ends
        current.read([value])

    def _before_forward(self) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: Any) -> None:
            self._running.append(module)
            values = self._values.read_by(module)
            for value in values:
                value.users += 1
            if not self._entered and torch.is_grad_enabled():
                # A checkpoint's second forward, or the script's call of a part of the model, before
                # that of the whole perhaps: what it saves is not seen here.
                for value in values:
                    value.is_pinned = True
            if (current := self._current()) is None:
                return
            current.end_reads_apart()
            if not self._entered or self._entered[0] is not None:
                current.read(values)

        return hook

    def _after_forward(self) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if module in self._running:
                while self._running.pop() is not module:
                    pass
            for value in self._values.read_by(module):
                value.users = max(0, value.users - 1)
            if (current := self._current()) is not None:
                current.end_reads_apart()

        return hook

    def _before_access(self) -> Callable[..., None]:
        """Somebody reads or writes the module's values as they are."""

        def hook(module: nn.Module, *given: Any) -> None:
            current = self._current()
            if current is not None and self._values.read_by(module):
                current.stay()

        return hook


class NoticedReads(TorchFunctionMode):
    """read: called with each parameter that an operation is about to read."""

    def __init__(self, read: Callable[[nn.Parameter], None]) -> None:
        super().__init__()
        self._read = read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in NO_READS:
            for each in tree_iter((args, kwargs)):
                if isinstance(each, nn.Parameter):
                    self._read(each)
        return func(*args, **(kwargs or {}))
