"""Life with torch.compile.

What a compiled region calls is a part of it, hooks included, and a hook that waits for a message
cannot be. So hooks stand in front of and behind regions: around what `module.compile()` compiled,
on the wrapper that `torch.compile(module)` made. One that the compiler meets inside a region all
the same does nothing there but say so, and `step()` then waits for what the hook would have.

A region's backward is one step that hands out all its gradients at its end.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

Function = TypeVar("Function", bound=Callable[..., Any])

Hook = Callable[..., None]


@dataclass(slots=True)
class Inlined:
    """seen: a compiled region has left hooks out that it should have called."""

    seen: bool = False


def outside(hook: Hook, inlined: Inlined | None = None) -> Hook:
    """The hook, which compiled regions leave out. inlined: where they say so; None where the hook
    has run in front of the region."""
    disabled: list[Hook] = []

    def called(*args: Any) -> None:
        if torch.compiler.is_compiling():
            if inlined is not None:
                inlined.seen = True
            return
        if not compiler_is_loaded():
            hook(*args)
            return
        if not disabled:
            disabled.append(torch.compiler.disable(hook))
        disabled[0](*args)

    return called


def opaque(hook: Function) -> Function:
    """Called by compiled regions, which break around it: of plans that lag. What
    `torch.compiler.disable` marks a function with, without loading the compiler."""
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return hook


def compiler_is_loaded() -> bool:
    """Loading it takes seconds."""
    return "torch._dynamo" in sys.modules


def within_compiler() -> bool:
    """Whether Python frames that are called now would be compiled."""
    if not compiler_is_loaded():
        return False
    return callable(torch._C._dynamo.eval_frame.get_eval_frame_callback())


def is_compiled_in_place(module: nn.Module) -> bool:
    """By `module.compile()`."""
    return module._compiled_call_impl is not None


def is_compiled(module: nn.Module) -> bool:
    """By `torch.compile(module)` or `module.compile()`."""
    return compiled_from(module) is not module or is_compiled_in_place(module)


def compiled_from(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, or the module itself."""
    held = module._modules  # of a scripted module no dictionary
    if "_orig_mod" not in held:
        return module
    inner = held["_orig_mod"]
    return module if inner is None else inner


class InFront:
    """Calls `before` in front of a module's forward, and `after` behind it, also where it failed;
    outside of the region, if the module is compiled. Until removed."""

    def __init__(self, module: nn.Module, before: Hook, after: Hook | None = None):
        self._module = module
        self._compiled: Any = None
        self._handles: list[RemovableHandle] = []
        if is_compiled_in_place(module):
            self._compiled = module._compiled_call_impl
            self._call = _around(module, self._compiled, before, after)
            module.__dict__["_compiled_call_impl"] = self._call
            return
        self._handles.append(module.register_forward_pre_hook(before))
        if after is not None:
            self._handles.append(module.register_forward_hook(after, always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._compiled is not None and self._module._compiled_call_impl is self._call:
            self._module.__dict__["_compiled_call_impl"] = self._compiled


def _around(
    module: nn.Module, compiled: Callable[..., Any], before: Hook, after: Hook | None
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        output = None
        before(module, args)
        try:
            output = compiled(*args, **kwargs)
            return output
        finally:
            if after is not None:
                after(module, args, output)

    return call


def warn_if_compiled(model: nn.Module) -> None:
    """Say that one region over the whole model leaves no backward pass to hide messages behind."""
    if not is_compiled(model):
        return
    warnings.warn(
        "the model is compiled as one region: its gradients become ready together, at the end of "
        "the backward pass, so no communication overlaps with it. Compile its blocks instead, "
        "`for block in model.blocks: block.compile()`, before autosync.distribute.",
        stacklevel=3,
    )
