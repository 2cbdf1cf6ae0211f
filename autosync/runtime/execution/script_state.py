"""The script's access to the optimizer's state: `optimizer.state`, `state_dict()` and
`load_state_dict()`.

If every rank holds the state of every variable, `optimizer.state` is torch's own dictionary, and
reading it waits for the updates in flight. While the script keeps a reference to a part of it,
each `step()` waits for its updates. torch's `get_state_dict` and frameworks keep no reference.
If updates are owned or sharded, no rank holds all of it: `state_dict()` gathers it, and
reading `optimizer.state` is refused.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.execution.completion import Phase
from autosync.runtime.execution.model_checks import within_backward
from autosync.runtime.updates.optimizer_state import asks_for_state
from autosync.runtime.updates.optimizers import as_plain, held_state, optimizers_in

if TYPE_CHECKING:
    from autosync.runtime.execution.engine import Engine


class ScriptState:
    """Of the optimizer of one plan, or of several.

    in_parts, to: what `state_dict()` gives where no rank holds all of a variable's state: this
        rank's parts; or the whole, on rank `to` alone, by default on every rank.
    """

    def __init__(self, engine: "Engine"):
        self.in_parts = False
        self.to: int | None = None
        self._begun: set[int] = set()
        self._engine = engine
        self._optimizers = optimizers_in(engine.optimizer)
        self._is_split = not all(variable.whole for variable in engine.variables)
        self._overlaps = any(variable.deferred for variable in engine.variables)
        self._was_read = False

    def begin(self) -> None:
        """The plan takes over the state of the script's optimizer."""
        self._begun = {id(one) for one in self._optimizers if held_state(one)}
        self._engine.state.take_parts()

    def note_step(self) -> None:
        """Every optimizer may have a state from now on."""
        self._begun.update(map(id, self._optimizers))

    def of(self, optimizer: Optimizer) -> Any:
        """The value of `optimizer.state` for the script."""
        if self._is_split:
            return SplitState(id(optimizer) in self._begun)
        if self._engine.iteration.phase is Phase.STEPPED:
            self._engine.flush()
        self._was_read = self._overlaps
        return held_state(optimizer)

    def replace(self, optimizer: Optimizer, state: Any) -> None:
        """The script assigns `optimizer.state`."""
        if self._is_split:
            raise _split_state()
        self.of(optimizer)
        optimizer.__dict__["state"] = state

    def is_kept(self) -> bool:
        """Whether the script still holds a dictionary or a tensor of `optimizer.state`, and may
        change it after any step: it has more references than the optimizer's own. Called
        while no update runs."""
        if self._was_read:
            self._was_read = any(map(_is_kept, self._optimizers))
        return self._was_read

    def state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """A collective where updates are owned or sharded."""
        engine = self._engine
        state: dict[str, Any]
        if not self.in_parts:
            with self.gathered(), as_plain(optimizer):
                state = optimizer.state_dict()
            return state
        self._flush_everywhere()
        with as_plain(optimizer):
            state = optimizer.state_dict()
        parts = engine.state.parts(optimizer)
        for number, parameter in enumerate(_parameters(optimizer)):
            if parameter in parts:
                state["state"][number] = {**state["state"].get(number, {}), **parts[parameter]}
        return state

    def load_state_dict(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """All of it into the optimizer, from which each rank takes the parts that it updates; or,
        of what is split, these parts alone."""
        engine = self._engine
        engine.flush()
        if self.in_parts:
            saved = [key for group in state_dict["param_groups"] for key in group["params"]]
            keys = dict(zip(_parameters(optimizer), saved, strict=True))
            state = dict(state_dict["state"])
            parts = {p: state.pop(keys[p], {}) for p in engine.state.parts(optimizer)}
            with as_plain(optimizer):
                optimizer.load_state_dict({**state_dict, "state": state})
            engine.state.load_parts(optimizer, parts)
        else:
            if len(self._optimizers) > 1:  # whose states lie in the same buckets
                self.show("optimizer.load_state_dict()")
            with as_plain(optimizer):
                optimizer.load_state_dict(state_dict)
            engine.state.take_parts()
        self._begun.discard(id(optimizer))
        if state_dict["state"]:
            self._begun.add(id(optimizer))

    def make(self, optimizer: Optimizer) -> bool:
        """Whether a `step()` only asks for the state of an optimizer that has none, as
        torch.distributed.checkpoint.state_dict does; then it is made, without a message."""
        engine = self._engine
        if engine.iteration.phase is Phase.REDUCING or not asks_for_state(optimizer):
            return False
        engine.flush()
        engine.state.begin(optimizer)
        self._begun.add(id(optimizer))
        return True

    def show(self, call: str) -> None:
        """Nothing is in flight, and optimizers hold all of the state. A collective where updates
        are owned or sharded. call: of the script."""
        self._flush_everywhere()
        if self._is_split:
            with self._engine.monitor.exchange("the gathering of the optimizer's state"):
                self._engine.state.gather(call)

    def _flush_everywhere(self) -> None:
        """In a call of every rank. Where this rank's last backward pass ended with an error, others
        may wait for its gradients and not come: they read why. Not where it still runs: a hook or a
        signal's handler calls, and the pass goes on."""
        engine = self._engine
        engine.flush()
        if self._is_split and engine.iteration.phase is Phase.BACKWARD and not within_backward():
            engine.leave()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within, the optimizer holds the state of every variable. A collective where updates are
        owned or sharded."""
        engine = self._engine
        self._flush_everywhere()
        with engine.monitor.exchange("the gathering of the optimizer's state"):
            gathered = engine.state.gather("optimizer.state_dict()", self.to)
        try:
            yield
        finally:
            for variable in gathered:
                held_state(engine.optimizer).pop(variable.parameter, None)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    """In the order of a state_dict."""
    return [p for group in optimizer.__dict__["param_groups"] for p in group["params"]]


class SplitState:
    """`optimizer.state` where no rank holds all of it: says whether there is any."""

    def __init__(self, has_begun: bool):
        self._has_begun = has_begun

    def __bool__(self) -> bool:
        return self._has_begun

    def _refuse(self, *_: Any) -> NoReturn:
        raise _split_state()

    __getattr__ = __getitem__ = __setitem__ = __delitem__ = _refuse
    __iter__ = __len__ = __contains__ = __reduce_ex__ = _refuse


def _split_state() -> NotSupported:
    return NotSupported(
        "optimizer.state was read or changed, but no rank holds all of it: the strategy updates "
        "parts of variables on the ranks that own them.",
        thing="optimizer.state",
        remedy="Take it by optimizer.state_dict(), called on every rank, and give it back by "
        "optimizer.load_state_dict(); or use a strategy without owned or sharded updates.",
    )


def _references(held: dict[Any, Any]) -> int:
    """The most that any tensor or dictionary among the values has."""
    kinds = (Tensor, dict)
    counts = (sys.getrefcount(value) for value in held.values() if isinstance(value, kinds))
    return max(counts, default=0)


HELD_ONCE = _references({0: {}})


def _is_kept(optimizer: Optimizer) -> bool:
    attributes = optimizer.__dict__
    if _references({0: attributes["state"]}) > HELD_ONCE + 1:
        return True
    entries = attributes["state"].values()
    return _references(attributes["state"]) > HELD_ONCE or any(
        _references(entry) > HELD_ONCE for entry in entries if isinstance(entry, dict)
    )
