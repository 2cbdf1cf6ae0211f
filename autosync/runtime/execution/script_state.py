"""The optimizer's state in the script's hands.

Where updates end behind `step()`, or are owned or sharded, `optimizer.state` is a view: whoever
reads or changes it waits for the updates in flight, and finds the whole state of every parameter.
The next `step()` goes on from what the script leaves there: each rank takes the parts that it
updates. A tensor of the state that the script keeps beyond a `step()` waits in the same way.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, ClassVar
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.execution.pending_gradients import METADATA
from autosync.runtime.updates.optimizer_state import ShardedOptimizerState
from autosync.runtime.updates.twin_optimizer import held_state


class ScriptState:
    """Of the optimizer of one plan, or of several. flush: waits for what is in flight."""

    def __init__(
        self, state: ShardedOptimizerState, flush: Callable[[], None], monitor: Monitor
    ) -> None:
        variables = state.records.variables
        self._state = state
        self._flush = flush
        self._monitor = monitor
        self._is_split = not all(variable.whole for variable in variables)
        self._waits = self._is_split or any(variable.deferred for variable in variables)
        self._is_shown = True
        self._kept: list[tuple[Tensor, Any, ref[Tensor]]] = []
        self._awaited: Any = type("AwaitedState", (AwaitedState,), {"owner": self})

    def of(self, optimizer: Optimizer) -> Any:
        """What the script gets for `optimizer.state`."""
        return StateView(optimizer, self) if self._waits else held_state(optimizer)

    def show(self, call: str = "optimizer.state") -> None:
        """Before the script reads or changes it: nothing is in flight, and optimizers hold all of
        it. A collective where updates are owned or sharded. call: of the script."""
        if self._is_shown:
            return
        self._flush()
        if self._is_split:
            with self._monitor.exchange("the gathering of the optimizer's state"):
                self._state.gather(call)
        self._is_shown = True
        self._give_kept_back()

    def take(self) -> None:
        """At `step()`, and before a checkpoint is gathered: what the script has left counts.

        Raises:
            NotSupported: it is of another shape than its parameter, and updates are owned or
                sharded.
        """
        if not (self._is_shown and self._waits):
            return
        kept = list(self._find_tensors())
        self._state.take_parts()
        self._is_shown = False
        self._kept = [one for one in kept if one[-1]() is not None]
        for _, _, tensor in self._kept:
            _turn_into(self._awaited, tensor)

    def drop(self) -> None:
        """Another state has been loaded, or the plan is off: what the script keeps is its own."""
        for _, _, tensor in self._kept:
            _turn_into(Tensor, tensor)
        self._kept = []

    def loaded(self) -> None:
        """The optimizer's parts are taken from a loaded state already."""
        self.drop()
        self._is_shown = not self._is_split

    def _find_tensors(self) -> Iterator[tuple[Tensor, Any, ref[Tensor]]]:
        """(parameter, key, tensor); a tensor that lives on behind this is kept by the script, for
        the optimizer goes on with an alias of it."""
        held = held_state(self._state.optimizer)
        for parameter in list(held):
            entry = held[parameter]
            if not isinstance(entry, dict):
                continue
            for key in list(entry):
                if type(entry[key]) is Tensor:
                    found = ref(entry[key])
                    entry[key] = entry[key].detach()
                    yield parameter, key, found

    def _give_kept_back(self) -> None:
        kept = self._kept
        self.drop()
        held = held_state(self._state.optimizer)
        for parameter, key, found in kept:
            tensor, entry = found(), held.get(parameter)
            if tensor is None or not isinstance(entry, dict):
                continue
            now = entry.get(key)
            if not isinstance(now, Tensor) or now.shape != tensor.shape:
                continue
            if now.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(now)
            entry[key] = tensor


class AwaitedState(Tensor):
    """A tensor of the state, while updates that change it may be in flight."""

    owner: ClassVar[ScriptState]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        cls.owner.show()
        return func(*args, **(kwargs or {}))


def _turn_into(kind: Any, found: ref[Tensor]) -> None:
    if (tensor := found()) is not None:
        tensor.__class__ = kind


class _View(MutableMapping[Any, Any]):
    """A dictionary that is waited for, and found, anew at each access."""

    def plain(self) -> Any:
        """The dictionary itself."""
        raise NotImplementedError

    def __getitem__(self, key: Any) -> Any:
        return self.plain()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.plain()[key] = value.plain() if isinstance(value, _View) else value

    def __delitem__(self, key: Any) -> None:
        del self.plain()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.plain())

    def __len__(self) -> int:
        return len(self.plain())

    def __contains__(self, key: object) -> bool:
        return key in self.plain()

    def __repr__(self) -> str:
        return repr(self.plain())

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copied and pickled as a dictionary."""
        return dict, (dict(self.plain()),)

    # These read an entry first in MutableMapping, and torch's dictionary would make it.

    def get(self, key: Any, default: Any = None) -> Any:
        if key in self:
            return self[key]
        return default

    def pop(self, key: Any, *default: Any) -> Any:
        return self.plain().pop(key, *default)

    def popitem(self) -> tuple[Any, Any]:
        item: tuple[Any, Any] = self.plain().popitem()
        return item

    def clear(self) -> None:
        self.plain().clear()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self.plain().setdefault(key, default)
        return self[key]


class StateView(_View):
    """`optimizer.state`."""

    def __init__(self, optimizer: Optimizer, shown: ScriptState) -> None:
        self._optimizer = optimizer
        self._shown = shown

    def plain(self) -> Any:
        self._shown.show()
        return held_state(self._optimizer)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return defaultdict, (dict, dict(self.plain()))

    def __getitem__(self, key: Any) -> Any:
        value = self.plain()[key]
        return EntryView(self, key) if isinstance(value, dict) else value


class EntryView(_View):
    """`optimizer.state[parameter]`."""

    def __init__(self, state: StateView, key: Any) -> None:
        self._state = state
        self._key = key

    def plain(self) -> Any:
        found = self._state.plain().get(self._key)
        return {} if found is None else found  # torch's is nobody's state any more
