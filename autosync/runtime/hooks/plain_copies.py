"""What is pickled or copied is plain: `torch.save(model)`, `copy.deepcopy(model)` and the same of
an optimizer leave hooks, threads and process groups of the plan behind, and wait for what is in
flight.

Python asks the object itself how it is reduced, so a module keeps its class.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from copyreg import _reconstructor as made_again  # type: ignore[attr-defined]
from typing import Any

from torch import nn
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.execution.engine import Engine
from autosync.runtime.hooks.model_methods import GIVEN
from autosync.runtime.updates.twin_optimizer import as_plain

REDUCE = "__reduce_ex__"
SCRIPT = "__prepare_scriptable__"
"""What torch.jit.script calls of each module first."""

ADDED = (REDUCE, SCRIPT, "forward", "compile", *GIVEN)
"""Attributes that a plan gives a module, where they are the runtime's."""

OURS = ("autosync.runtime.", "autosync.extensions.")


class PlainCopies:
    """Of the modules of an attached model, until removed. flush: waits for what is in flight."""

    def __init__(self, model: nn.Module, flush: Callable[[], None]):
        self._modules = list(model.modules())
        for module in self._modules:
            module.__dict__[REDUCE] = _reducer(module, flush)
            module.__dict__[SCRIPT] = _refuse_script

    def remove(self) -> None:
        for module in self._modules:
            module.__dict__.pop(REDUCE, None)
            module.__dict__.pop(SCRIPT, None)


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
    found = {
        key: _plain_hooks(value) if isinstance(value, OrderedDict) else value
        for key, value in state.items()
        if not (key in ADDED and _is_ours(value))
    }
    known = {number for value in found.values() for number in _numbers(value)}
    for key in ("_forward_hooks_always_called", "_forward_hooks_with_kwargs"):
        if key in found:
            found[key] = OrderedDict((n, flag) for n, flag in found[key].items() if n in known)
    return found


def _numbers(value: Any) -> Iterable[int]:
    if not isinstance(value, OrderedDict):
        return ()
    return (number for number, hook in value.items() if callable(hook))


def _plain_hooks(hooks: Mapping[Any, Any]) -> OrderedDict[Any, Any]:
    return OrderedDict((key, hook) for key, hook in hooks.items() if not _is_ours(hook))


def _is_ours(value: Any) -> bool:
    """A hook, a reducer, or a method of the engine."""
    function = getattr(value, "hook", value)  # torch wraps some hooks
    home = getattr(function, "__module__", None)
    return callable(function) and isinstance(home, str) and home.startswith(OURS)


def reduce_optimizer(optimizer: Optimizer, engine: Engine) -> tuple[Any, ...]:
    """As the class that it had, with the state of every parameter. A collective where the plan owns
    or shards updates, like `state_dict()`."""
    kind = engine.optimizer_class_of(optimizer)
    with engine.gathered_state(), as_plain(optimizer, kind):
        attributes = dict(optimizer.__getstate__())
        attributes["state"] = type(optimizer.state)(dict, dict(optimizer.state))
    return made_again, (kind, object, None), attributes
