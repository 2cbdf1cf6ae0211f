"""Methods that a plan gives the model: torch's own DDP has some, and some cannot work."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from autosync.errors import NotSupported

Telling = Callable[[str], AbstractContextManager[None]]
"""Around a call of the script's: whatever ends it, other ranks read it."""

GIVEN = ("no_sync", "zero_grad", "join", "join_hook")


class ModelMethods:
    """Of an attached model, until removed.

    no_sync: as torch's DDP has it. cleared: called at each `model.zero_grad()`, where given. What
    the model itself calls `join` or `join_hook` stays.
    """

    def __init__(
        self,
        model: nn.Module,
        no_sync: Callable[[], AbstractContextManager[None]],
        telling: Telling,
        cleared: Callable[[], None] | None = None,
    ):
        self._attributes = model.__dict__
        self._given: dict[str, Any] = {"no_sync": no_sync}
        for name, what in (("join", "model.join()"), ("join_hook", "torch's Join")):
            if not hasattr(model, name):
                self._given[name] = refused_join(what, telling)
        if cleared is not None:
            self._given["zero_grad"] = _clearing(model, cleared)
        self._attributes.update(self._given)

    def remove(self) -> None:
        for name, given in self._given.items():
            if self._attributes.get(name) is given:
                del self._attributes[name]


def refused_join(what: str, telling: Telling) -> Callable[..., Any]:
    """In place of `join` and of the `join_hook` that torch's Join asks for."""

    def join(*args: Any, **kwargs: Any) -> Any:
        with telling(what):
            raise NotSupported(
                f"{what} shadows the messages of ranks that are out of data, and a plan has no "
                "such messages: every rank takes part in each synchronized backward pass.",
                thing=what,
                remedy="Give every rank the same number of batches: autosync.ShareSampler and "
                "torch's DistributedSampler do, IterableDatasets need a common length.",
            )

    return join


def _clearing(model: nn.Module, cleared: Callable[[], None]) -> Callable[..., None]:
    def zero_grad(*args: Any, **kwargs: Any) -> None:
        cleared()
        type(model).zero_grad(model, *args, **kwargs)

    return zero_grad
