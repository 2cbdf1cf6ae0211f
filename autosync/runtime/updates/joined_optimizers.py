"""Several optimizers of one model, seen as one: their parameter groups side by side, the state of
each parameter with the optimizer that holds it, and a step in which each updates its own groups."""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from autosync.runtime.layout.records import Settings
from autosync.runtime.updates.twin_optimizer import held_state, snapshot, step_twin

OWNER = "_autosync_optimizer"
"""Entry of a group's settings: which of the optimizers it belongs to."""


class JoinedState(MutableMapping[Tensor, Any]):
    """The state of every parameter, where its optimizer keeps it."""

    def __init__(self, optimizers: Sequence[Optimizer]):
        self._optimizers = optimizers
        self._holders = {
            id(parameter): optimizer
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def _of(self, parameter: Tensor) -> MutableMapping[Tensor, Any]:
        state: MutableMapping[Tensor, Any] = held_state(self._holders[id(parameter)])
        return state

    def __getitem__(self, parameter: Tensor) -> Any:
        return self._of(parameter)[parameter]

    def get(self, parameter: Tensor, default: Any = None) -> Any:
        """Without the entry that torch's own mapping makes when it is read."""
        return self._of(parameter).get(parameter, default)

    def __setitem__(self, parameter: Tensor, state: Any) -> None:
        self._of(parameter)[parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._of(parameter)[parameter]

    def __iter__(self) -> Iterator[Tensor]:
        for optimizer in self._optimizers:
            yield from held_state(optimizer)

    def __len__(self) -> int:
        return sum(len(held_state(optimizer)) for optimizer in self._optimizers)


class JoinedOptimizers(Optimizer):
    """What an engine takes for the optimizer of its model; the script never sees it.

    optimizers: the script's. classes: their own, from before they followed a plan. noted: the
    settings of those whose `step()` has come while others' are awaited, by their number.
    """

    def __init__(self, optimizers: Sequence[Optimizer]):
        # Not torch's own constructor: groups and state stay with the optimizers.
        self.optimizers = tuple(optimizers)
        self.classes = tuple(type(optimizer) for optimizer in optimizers)
        self.noted: dict[int, Settings] = {}
        self.__dict__["state"] = JoinedState(optimizers)
        self.refresh()

    def refresh(self) -> None:
        """An optimizer that loads a state makes new groups."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self.__dict__["param_groups"] = groups

    def class_of(self, group: int) -> type[Optimizer]:
        """Of the optimizer that has this parameter group."""
        return self.classes[self.owners()[group]]

    def owners(self) -> list[int]:
        """The number of each group's optimizer."""
        return [i for i, o in enumerate(self.optimizers) for _ in o.param_groups]

    def note(self, optimizer: Optimizer) -> None:
        """Its `step()` has come; a scheduler may change its settings before the others' does."""
        self.noted[self.optimizers.index(optimizer)] = snapshot(optimizer)

    def settings(self) -> Settings:
        """Of every group, as of its optimizer's `step()`."""
        found = []
        for number, optimizer in enumerate(self.optimizers):
            groups = self.noted.pop(number, None) or snapshot(optimizer)
            found += [{**group, OWNER: number} for group in groups]
        return found

    def step(self, closure: Any = None) -> Any:
        """Of a twin: its groups come from `settings`."""
        for number, optimizer in enumerate(self.optimizers):
            mine = [group for group in self.param_groups if group[OWNER] == number]
            groups = [{k: v for k, v in group.items() if k != OWNER} for group in mine]
            step_twin(self.classes[number], optimizer, groups, self.state)

    @property
    def grad_scale(self) -> Tensor | None:
        """A GradScaler leaves it on a fused optimizer while that steps."""
        return self._of_scaler("grad_scale")

    @property
    def found_inf(self) -> Tensor | None:
        return self._of_scaler("found_inf")

    def _of_scaler(self, name: str) -> Tensor | None:
        found = (getattr(optimizer, name, None) for optimizer in self.optimizers)
        return next((tensor for tensor in found if tensor is not None), None)


def optimizer_class_of(optimizer: Optimizer, group: int) -> type[Optimizer]:
    """The class that updates a parameter group."""
    if isinstance(optimizer, JoinedOptimizers):
        return optimizer.class_of(group)
    return type(optimizer)


def settings_of(optimizer: Optimizer) -> Settings:
    """The hyperparameters of every group as of `step()`."""
    return optimizer.settings() if isinstance(optimizer, JoinedOptimizers) else snapshot(optimizer)
