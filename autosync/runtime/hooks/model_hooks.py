"""What a plan puts on the script's model: hooks where gradients are complete, where forward passes
begin and end and where its state is read; methods as torch's DDP has them; and plain copies."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autosync.errors import InvalidInput, NotSupported
from autosync.runtime.compression.factors import FactorCapture
from autosync.runtime.execution.completion import Phase
from autosync.runtime.execution.engine import Engine
from autosync.runtime.execution.pending import tensors_in
from autosync.runtime.hooks.forward_gates import Gates
from autosync.runtime.hooks.torch_compile import compiled_from
from autosync.runtime.layout.records import Accumulator, NodeHook, VariableRecord

Reporting = Callable[[str], AbstractContextManager[None]]
"""Around a call of the script's: whatever ends it, other ranks read it."""

METHODS = ("no_sync", "zero_grad", "join", "join_hook")
"""What a plan gives the model itself."""

REDUCE = "__reduce_ex__"
SCRIPT = "__prepare_scriptable__"
"""What torch.jit.script calls of each module first."""

ADDED = (REDUCE, SCRIPT, "forward", "compile", *METHODS)
"""Attributes that a plan gives a module, where they are the runtime's."""

OURS = ("autosync.runtime.", "autosync.extensions.")

Hooks = OrderedDict[int, Any]
"""Of a module, by the number that a handle has; or the flags of some."""


class Removable(Protocol):
    def remove(self) -> None: ...


def install(handles: list[Removable], model: nn.Module, engine: Engine, gates: Gates) -> None:
    """Every hook of an attached plan. handles: receives each as it is installed, so that those
    before one that fails can be removed."""
    for variable in engine.variables:
        handle = _watch(engine, variable)
        handles.append(handle)
    gates.install(
        _before_forward(model, engine, gates),
        _after_forward(model, engine, gates),
        lambda *_: engine.before_buffers(),
    )
    engine.is_blind = lambda: gates.inlined.seen
    for module in model.modules():
        handles.append(module.register_state_dict_pre_hook(lambda *_: engine.flush()))
        handles.append(module.register_load_state_dict_pre_hook(lambda *_: engine.before_load()))


def _before_forward(
    model: nn.Module, engine: Engine, gates: Gates
) -> Callable[[nn.Module, Any], None]:
    record = any(variable.deferred for variable in engine.variables)

    def hook(module: nn.Module, args: Any) -> None:
        if compiled_from(module) is not model:  # a copy of the model
            return
        if not (torch.is_grad_enabled() and model.training):
            engine.flush()
            return
        check_not_in_ddp(model)
        engine.begin_forward()
        gates.wait_for_model()
        if record and not gates.recorded:
            gates.start_recording()

    return hook


def check_not_in_ddp(model: nn.Module) -> None:
    """In a forward pass of the model. Raises InvalidInput where torch's DDP runs it."""
    ddp = DistributedDataParallel._active_ddp_module
    if ddp is not None and any(module is model for module in ddp.modules()):
        raise InvalidInput(
            f"torch's DistributedDataParallel was put around a model ({type(model).__name__}) that "
            "autosync.distribute has distributed, so both would average its gradients.",
            thing="model",
            value=type(model).__name__,
            remedy="Train the model that autosync.distribute returned and do not wrap it. "
            "Accelerate's prepare and a Trainer do: give them the plain model, and write "
            "`use_bundle(accelerator, bundle)` of autosync.frameworks.accelerate, or "
            "`use_bundle(trainer, bundle)` of autosync.frameworks.transformers, before, in place "
            "of autosync.distribute.",
        )


def _after_forward(
    model: nn.Module, engine: Engine, gates: Gates
) -> Callable[[nn.Module, Any, Any], None]:
    def expect_end(gradient: Tensor) -> None:
        if engine.iteration.phase is not Phase.BACKWARD:  # else the end is known, or a pass failed
            engine.expect_end()

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if compiled_from(module) is not model:
            return
        gates.stop_recording(failed=output is None and sys.exception() is not None)
        if engine.monitor.failure is not None:  # which the forward pass has raised
            return
        if not (torch.is_grad_enabled() and engine.synchronizing):
            return
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(expect_end)

    return hook


def _watch(engine: Engine, variable: VariableRecord) -> Removable:
    """Tell the engine of the variable's gradients, until removed."""
    if isinstance(variable.packer, FactorCapture):
        hook = _factor_hook(engine, variable, variable.packer)
        variable.accumulator = variable.packer.install(hook)
        return variable.packer
    variable.accumulator = Accumulator(variable.parameter, _dense_hook(engine, variable))
    return variable.accumulator


def _dense_hook(engine: Engine, variable: VariableRecord) -> NodeHook:

    def hook(_: Any, gradients: Any) -> None:
        if gradients[0] is None:
            return
        if engine.synchronizing:
            engine.arrived(variable)
        else:
            engine.optimizer_step.accumulated(variable)

    return hook


def _factor_hook(engine: Engine, variable: VariableRecord, capture: FactorCapture) -> NodeHook:
    """Whether or not a gradient came beside the factors."""

    def hook(_: Any, gradients: Any) -> None:
        if engine.synchronizing:
            capture.collect()
            engine.arrived(variable)
        else:
            with torch.no_grad():
                capture.accumulate()
            engine.optimizer_step.accumulated(variable)

    return hook


class ModelMethods:
    """Of an attached model, until removed.

    no_sync: as torch's DDP has it. cleared: called at each `model.zero_grad()`, where given. What
    the model itself calls `join` or `join_hook` stays. What the script has put on it comes back.
    """

    def __init__(
        self,
        model: nn.Module,
        no_sync: Callable[[], AbstractContextManager[None]],
        reporting: Reporting,
        cleared: Callable[[], None] | None = None,
    ):
        self._attributes = model.__dict__
        self._given: dict[str, Any] = {"no_sync": no_sync}
        for name, what in (("join", "model.join()"), ("join_hook", "torch's Join")):
            if not hasattr(model, name):
                self._given[name] = refused_join(what, reporting)
        if cleared is not None:
            self._given["zero_grad"] = _clearing(model, cleared)
        held = self._attributes
        self._before = {name: held[name] for name in self._given if name in held}
        self._attributes.update(self._given)

    def remove(self) -> None:
        for name, given in self._given.items():
            if self._attributes.get(name) is not given:
                continue
            del self._attributes[name]
            if name in self._before:
                self._attributes[name] = self._before[name]


def refused_join(what: str, reporting: Reporting) -> Callable[..., Any]:
    """In place of `join` and of the `join_hook` that torch's Join asks for."""

    def join(*args: Any, **kwargs: Any) -> Any:
        with reporting(what):
            raise NotSupported(
                f"{what} shadows the messages of ranks that are out of data, and a plan has no "
                "such messages: every rank takes part in each synchronized backward pass.",
                thing=what,
                remedy="Give every rank the same number of batches: autosync.ShareSampler and "
                "torch's DistributedSampler do, IterableDatasets need a common length.",
            )

    return join


def _clearing(model: nn.Module, cleared: Callable[[], None]) -> Callable[..., None]:
    plain = model.zero_grad  # of its class, or the script's own

    def zero_grad(*args: Any, **kwargs: Any) -> None:
        cleared()
        plain(*args, **kwargs)

    return zero_grad


class PlainCopies:
    """What is pickled or copied of a model is plain, until removed: `torch.save(model)` and
    `copy.deepcopy(model)` leave hooks, threads and process groups behind, and wait for what is in
    flight. Python asks the object itself how it is reduced, so a module keeps its class, and what a
    handle of the script's own hook refers to is the dictionary of the copied module."""

    def __init__(self, model: nn.Module, flush: Callable[[], None]):
        self._modules = list(model.modules())
        self._hooks: list[Hooks] = []
        names = [name for name in vars(nn.Module()) if "_hooks" in name]  # of hooks, and of flags
        for module in self._modules:
            module.__dict__[REDUCE] = _reducer(module, flush)
            module.__dict__[SCRIPT] = _refuse_script
            found = (module.__dict__.get(name) for name in names)
            own = [hooks for hooks in found if isinstance(hooks, OrderedDict)]
            for hooks in own:
                vars(hooks)[REDUCE] = _hooks_reducer(hooks, own)
            self._hooks += own

    def remove(self) -> None:
        for module in self._modules:
            module.__dict__.pop(REDUCE, None)
            module.__dict__.pop(SCRIPT, None)
        for hooks in self._hooks:
            vars(hooks).pop(REDUCE, None)


def _refuse_script() -> nn.Module:
    raise NotSupported(
        "torch.jit.script met a module that follows a plan: a scripted module has its own hooks, "
        "and none that would synchronize its gradients.",
        thing="torch.jit.script",
        remedy="Script a plain copy of it, `torch.jit.script(copy.deepcopy(model))`; to train "
        "what is scripted, script it before autosync.distribute.",
    )


def _reducer(module: nn.Module, flush: Callable[[], None]) -> Callable[[Any], Any]:
    def reduce(protocol: Any) -> Any:
        flush()
        made = type(module).__reduce_ex__(module, protocol)
        if isinstance(made, str):
            return made
        return tuple(_plain_state(part) if isinstance(part, dict) else part for part in made)

    return reduce


def _plain_state(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a module without what a plan has added to them."""
    return {key: value for key, value in state.items() if not (key in ADDED and _is_ours(value))}


def _hooks_reducer(hooks: Hooks, beside: list[Hooks]) -> Callable[[Any], Any]:
    """Without the hooks of a plan, and their flags. beside: all dictionaries of the module."""

    def reduce(protocol: Any) -> Any:
        entries = [entry for each in beside for entry in each.items() if not _is_ours(entry[1])]
        known = {number for number, hook in entries if callable(hook)}
        kept = [(n, value) for n, value in hooks.items() if n in known and not _is_ours(value)]
        return OrderedDict, (), None, None, iter(kept)

    return reduce


def _is_ours(value: Any) -> bool:
    """A hook, a reducer, or a method of the engine."""
    function = getattr(value, "hook", value)  # torch wraps some hooks
    home = getattr(function, "__module__", None)
    return callable(function) and isinstance(home, str) and home.startswith(OURS)
