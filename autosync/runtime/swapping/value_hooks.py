"""Hooks of the modules that read swapped values: these are on the device while such a module's
forward pass runs, and while it is asked for its state."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from autosync.runtime.swapping.swapped_pass import SwappedPass
from autosync.runtime.swapping.swapped_values import SwappedValues


class ValueHooks:
    """current: the pass that goes on. entered: forward passes of the whole model that run now, the
    outermost first; None stands for one without gradients."""

    def __init__(
        self,
        values: SwappedValues,
        current: Callable[[], SwappedPass | None],
        entered: Sequence[object | None],
    ) -> None:
        self._values = values
        self._current = current
        self._entered = entered
        self._handles: dict[nn.Module, list[RemovableHandle]] = {}

    def install(self, model: nn.Module) -> None:
        """On modules that have none yet. Before the hooks that others have there, which may make
        something of a weight; on the model itself behind the one that begins a pass."""
        for module in self._values.readers:
            if module not in self._handles:
                self._handles[module] = [
                    module.register_forward_pre_hook(
                        self._before_forward(), prepend=module is not model
                    ),
                    module.register_forward_hook(self._after_forward(), always_call=True),
                    module.register_state_dict_pre_hook(self._before_access()),
                    module.register_load_state_dict_pre_hook(self._before_access()),
                ]

    def remove(self) -> None:
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()

    def _before_forward(self) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, args: Any) -> None:
            values = self._values.read_by(module)
            for value in values:
                value.users += 1
            if (current := self._current()) is None:
                return
            current.end_reads_apart()
            if not self._entered and torch.is_grad_enabled():
                # A checkpoint's second forward, or the script's call of a part of the model: what
                # it saves is not seen here.
                for value in values:
                    value.is_pinned = True
            if not self._entered or self._entered[0] is not None:
                current.read(values)

        return hook

    def _after_forward(self) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
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
