"""The node of autograd that adds up a parameter's gradient, and our hook on it.

A hook of that node runs when all uses of the parameter have been through backward, and behind every
other hook of the gradient: those of the tensor, and those that `register_post_accumulate_grad_hook`
takes. torch's DDP listens there, too. The node goes with the last reference to it, so it is held.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

NodeHook = Callable[[Any, tuple[Tensor | None, ...]], None]
"""Called with nothing and (the gradient of this backward pass,): None where none came."""


class Accumulator:
    """Calls the hook for every gradient of a parameter, until removed."""

    def __init__(self, parameter: Tensor, hook: NodeHook):
        self._parameter = parameter
        self._hook = hook
        self._node: Any = None
        self._handle: RemovableHandle | None = None
        self._hooks: OrderedDict[int, Any] = OrderedDict()
        self.follow()

    def follows(self) -> bool:
        """A parameter that was converted to another type, and back, has another node."""
        return self._node is self._current()

    def follow(self) -> None:
        """Before a forward pass, which the node becomes a part of."""
        current = self._current()
        if self._node is not current:
            self.remove()
            self._node = current
            self._listen()

    def is_last(self) -> bool:
        """Whether no hook of the node runs behind ours."""
        return self._handle is not None and next(reversed(self._hooks)) == self._handle.id

    def make_last(self) -> None:
        """From the next backward pass on."""
        self.remove()
        self._listen()

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _current(self) -> Any:
        with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
            edge = self._parameter.view_as(self._parameter).grad_fn
        assert edge is not None
        return edge.next_functions[0][0]

    def _listen(self) -> None:
        handle: RemovableHandle = self._node.register_hook(self._hook)
        hooks = handle.hooks_dict_ref()
        assert hooks is not None  # the node holds it
        self._handle, self._hooks = handle, hooks
