"""Life with torch.compile.

torch compiles a module's hooks along with its forward, and a region's backward becomes one step
that hands out all its gradients at its end.
"""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

Function = TypeVar("Function", bound=Callable[..., Any])


def opaque(hook: Function) -> Function:
    """The compiler calls the hook and does not look into it: what `torch.compiler.disable` marks
    a function with, without the seconds that importing the compiler takes."""
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return hook


def is_compiled(module: nn.Module) -> bool:
    """By `torch.compile(module)` or `module.compile()`."""
    return compiled_from(module) is not module or module._compiled_call_impl is not None


def compiled_from(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, or the module itself."""
    inner = module._modules.get("_orig_mod")
    return module if inner is None else inner


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
