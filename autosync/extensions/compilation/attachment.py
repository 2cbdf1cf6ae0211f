"""Compiles a model in regions: one graph of the whole forward pass, cut where a region begins.

torch's DDPOptimizer cuts the same way, by the bytes of DDP's buckets. Each part is compiled by
itself, so that its backward pass is a node of autograd's graph, whose gradients are there when it
ends.
"""

import re
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx.passes.split_module import split_module
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.extensions.compilation.document import CompiledRegions
from autosync.runtime.bundle_fit import modules_alike
from autosync.runtime.hooks.torch_compile import is_compiled

ROOT = re.compile(r"^L\['\w+'\]\.?")
"""In front of the names of modules in a graph: the variable that holds the model."""


def check(model: nn.Module, entry: CompiledRegions, called: nn.Module) -> None:
    """Raises NotSupported where a region names no module of the model, or some of the model is
    compiled already."""
    own_names(model, entry)
    compiled = [name for name, module in model.named_modules() if is_compiled(module)]
    if called is not model or compiled:
        name = compiled[0] if compiled else type(model).__name__
        raise _refused(
            f"{name or type(model).__name__} is compiled already",
            name,
            "Give autosync.distribute the plain model, or a bundle without compile_regions.",
        )


def own_names(model: nn.Module, entry: CompiledRegions) -> dict[str, str]:
    """The model's name of each module that a region names: a graph is often recorded from a wrapper
    around the model, or the model is in one itself.

    Raises:
        NotSupported: the model has no such module, or several that it may be.
    """
    known = [name for name, _ in model.named_modules()]
    found = {}
    for name in (name for region in entry.regions for name in region):
        alike = modules_alike(name, known)
        if len(alike) != 1:
            why = f"the model has no module {name!r}"
            if alike:
                why = f"module {name!r} may be the model's {alike[0]!r} or {alike[1]!r}"
            raise _refused(why, name, "Tune for this model.")
        found[name] = alike[0]
    return found


def attach(
    model: nn.Module,
    entry: CompiledRegions,
    optimizers: Sequence[Optimizer] = (),
    backend: str = "inductor",
) -> "CompiledModel":
    """Compile the model in place, at its next forward pass. backend: of torch.compile, for each
    region."""
    return CompiledModel(model, entry, optimizers, backend)


class CompiledModel:
    """found: the modules that regions in compiled graphs begin with."""

    def __init__(
        self,
        model: nn.Module,
        entry: CompiledRegions,
        optimizers: Sequence[Optimizer],
        backend: str,
    ):
        names = own_names(model, entry)
        self._begins_with = [names[name] for name in entry.begins_with]
        self.found: set[str] = set()
        self._model, self._backend = model, backend
        self._handles = [optimizers[-1].register_step_post_hook(self._warn)] if optimizers else []
        model.compile(backend=self._compile)

    def remove(self, keep_state: bool = True) -> None:
        self._drop_handles()
        self._model._compiled_call_impl = None
        # The compiler counts what it has compiled of one function, for whichever backend, and runs
        # the function eagerly behind a limit, which trials of one model would reach.
        torch.compiler.reset()

    def _compile(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """Of torch.compile: a backend."""
        parts = cut(graph, self._begins_with[1:])
        self.found |= {self._begins_with[0], *parts.begins_with}
        split = split_module(
            graph,
            None,  # type: ignore[arg-type]  # torch itself gives none
            lambda node: parts.part[node],
        )
        for name, region in list(split.named_children()):
            assert isinstance(region, torch.fx.GraphModule)
            setattr(split, name, CompiledRegion(region, self._backend))
        return split

    def _warn(self, optimizer: Optimizer, *_: Any) -> None:
        """Where the script does not call the model itself, or its forward pass is several graphs,
        of which none has a region's first module."""
        if not any(float(group.get("lr", 1)) for group in optimizer.param_groups):
            return  # torch makes an optimizer's state so, before any forward pass
        self._drop_handles()
        missing = [name for name in self._begins_with if name not in self.found]
        if missing:
            warnings.warn(
                f"no compiled graph contains {', '.join(missing)}, so no region begins there.",
                stacklevel=2,
            )

    def _drop_handles(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


class Cut:
    """part: of each operation of a graph, numbered in the order of the forward pass. begins_with:
    the module that each part but the first begins with."""

    def __init__(self) -> None:
        self.part: dict[torch.fx.Node, int] = {}
        self.begins_with: list[str] = []


def cut(graph: torch.fx.GraphModule, begins_with: Sequence[str]) -> Cut:
    """A part begins with the first operation within each of these modules."""
    found = Cut()
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        modules = modules_of(node, graph)
        found.begins_with += [
            name for name in begins_with if name in modules and name not in found.begins_with
        ]
        found.part[node] = len(found.begins_with)
    return found


def modules_of(node: torch.fx.Node, graph: torch.fx.GraphModule) -> set[str]:
    """Names of those that an operation is within. What is checkpointed is one operation, with a
    graph of its own."""
    stack = node.meta.get("nn_module_stack") or {}
    found = {ROOT.sub("", str(name)) for name, _ in stack.values()}
    for given in node.all_input_nodes:
        inner = getattr(graph, str(given.target), None) if given.op == "get_attr" else None
        if isinstance(inner, torch.fx.GraphModule):
            found |= {name for each in inner.graph.nodes for name in modules_of(each, inner)}
    return found


class CompiledRegion(nn.Module):
    """A part of a graph, compiled at its first call."""

    def __init__(self, part: torch.fx.GraphModule, backend: str):
        super().__init__()
        # Of a class whose code exists already: within a backend, torch defers it to the first call,
        # which the compiler does not follow.
        forward = torch.fx.GraphModule(part, part.graph).forward

        def region(*inputs: Any) -> Any:
            return forward(*inputs)

        # Regions with one code object would count as compilations of one function, which are few.
        own = types.FunctionType(
            region.__code__.replace(), region.__globals__, None, None, region.__closure__
        )
        self._run = torch.compile(own, backend=backend)

    def forward(self, *inputs: Any) -> Any:
        return self._run(*inputs)


def _refused(why: str, value: object, remedy: str) -> NotSupported:
    return NotSupported(
        f"the strategy compiles regions of the model: {why}.",
        thing="compile_regions",
        value=value,
        remedy=remedy,
    )
