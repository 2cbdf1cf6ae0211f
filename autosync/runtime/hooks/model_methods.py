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

    no_sync: as torch's DDP has it. cleared: called at each `model.zero_grad()`, where given.
    """

    def __init__(
        self,
        model: nn.Module,
        no_sync: Callable[[], AbstractContextManager[None]],
        telling: Telling,
        cleared: Callable[[], None] | None = None,
    ):
        self._attributes = model.__dict__
        self._attributes["no_sync"] = no_sync
        self._attributes["join"] = refused_join("model.join()", telling)
        self._attributes["join_hook"] = refused_join("torch's Join", telling)
        if cleared is not None:
            self._attributes["zero_grad"] = _clearing(model, cleared)

    def remove(self) -> None:
        for name in GIVEN:
            self._attributes.pop(name, None)


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
