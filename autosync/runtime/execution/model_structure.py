"""Notices that the script has replaced, added or removed modules and parameters of a model."""

from collections.abc import Iterable
from itertools import chain
from operator import is_, itemgetter
from typing import Any

from torch import nn

from autosync.errors import NotSupported

KEYS = ("_modules", "_parameters")
PARTS = itemgetter(*KEYS)
"""Of a module's `__dict__`: read anew each time, for deleting from a sequence makes another one."""


class ModelStructure:
    """Compares what modules hold with what they held: one pass over identities, 0.2 microseconds a
    module and parameter.

    planned: parameters that are synchronized.
    """

    def __init__(self, model: nn.Module, planned: Iterable[nn.Parameter]):
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._model = model
        self._planned = [(names.get(id(parameter), ""), parameter) for parameter in planned]
        self._known = list(model.parameters())  # holds them: their identities stay theirs
        self._known_ids = {id(p) for p in chain(self._known, (p for _, p in self._planned))}
        self._frozen: list[tuple[str, nn.Parameter]] = []
        self._note()

    def check(self) -> None:
        """Raises NotSupported where a planned parameter has left the model, or one that trains has
        come. What is frozen may come and go."""
        found = self._found()
        if len(found) != len(self._held) or not all(map(is_, found, self._held)):
            self._compare()
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise unplanned(f"parameter {name!r}", "was added to the model")

    def _note(self) -> None:
        modules = [module.__dict__ for module in self._model.modules()]
        self._modules = [m for m in modules if all(isinstance(m.get(k), dict) for k in KEYS)]
        self._held = self._found()

    def _found(self) -> list[Any]:
        parts = chain.from_iterable(map(PARTS, self._modules))
        return list(chain.from_iterable(map(dict.values, parts)))

    def _compare(self) -> None:
        named = dict(self._model.named_parameters())
        here = set(map(id, named.values()))
        for name, parameter in self._planned:
            if id(parameter) not in here:
                raise NotSupported(
                    f"variable {name!r} is no longer the parameter that the model had when the "
                    "plan was attached, so nothing would train it.",
                    thing=f"variable {name}",
                    value=name,
                    remedy="Replace modules and parameters before autosync.distribute, and load "
                    "without assign=True.",
                )
        self._frozen = [(n, p) for n, p in named.items() if id(p) not in self._known_ids]
        self._note()


def unplanned(what: str, happened: str) -> NotSupported:
    return NotSupported(
        f"{what} {happened} after autosync.distribute: nothing synchronizes it, and every rank "
        "would train its own.",
        thing=what,
        remedy="Begin a new stage: `model, optimizer = autosync.detach(model)`, change what is "
        "trained, and call autosync.distribute with a bundle that was tuned for it.",
    )
