"""Tensors that a script may access before their values are complete: reading one waits.

If a plan overlaps the next forward pass, `parameter.grad` is not complete when `backward()`
returns. If updates are owned or sharded, or some ranks do not hold a variable, it is never complete
on every rank. So between backward and `step()` such a gradient is a `PendingGradient`: reading it
waits for the average, or is refused by name if no rank holds all of it. One that the script has
kept is read in the same way behind `step()`; behind the next backward pass it is refused.

Similarly `step()` may return before all new values have arrived. Until then such a parameter has
the class `PendingParameter`, whose operations wait first. That covers every read: by a module that
shares the weight, by an average of weights, through `parameter.data`. The gates of the forward pass
(`hooks/forward_gates.py`) wait for the values that their modules read and restore the class before,
so a training step has no other cost.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from autosync.runtime.layout.records import VariableRecord

if TYPE_CHECKING:
    from autosync.runtime.execution.script_gradients import ScriptGradients

UNSCALE = torch._amp_foreach_non_finite_check_and_unscale_
"""Operations of a GradScaler on gradients: it multiplies them and reports infinities."""

_GRAD: Any = Tensor.grad

METADATA = frozenset(
    [
        *(
            getattr(Tensor, name).__get__
            for name in ("dtype", "device", "layout", "shape", "ndim", "is_sparse", "is_cuda")
        ),
        *(getattr(Tensor, name).__get__ for name in ("requires_grad", "grad_fn", "is_leaf")),
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.element_size, Tensor.is_floating_point),
    ]
)
"""Operations that read no value."""

READS_NO_VALUE = METADATA | {
    _GRAD.__get__,
    _GRAD.__set__,
    _GRAD.__delete__,
    Tensor.requires_grad.__set__,  # type: ignore[attr-defined]  # torch says bool
    Tensor.requires_grad_,
    Tensor.register_hook,
    Tensor.register_post_accumulate_grad_hook,
}
"""Operations allowed on a parameter whose new value has not arrived."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in arguments or outputs, however they are nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


class PendingGradient(Tensor):
    """A wrapper that shares its storage with `plain`, the gradient itself: the runtime goes on
    working on that one. iteration: that it belongs to. of_values: wraps the values of that sparse
    gradient."""

    gradients: "ScriptGradients"
    variable: VariableRecord
    plain: Tensor
    iteration: int
    of_values: bool

    @staticmethod
    def around(
        gradients: "ScriptGradients", variable: VariableRecord, plain: Tensor, values: bool = False
    ) -> "PendingGradient":
        shown = plain._values() if values else plain
        made: PendingGradient = Tensor._make_subclass(PendingGradient, shown)
        made.gradients, made.variable, made.plain = gradients, variable, plain
        made.iteration = gradients.iteration
        made.of_values = values
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func in METADATA:
            return func(*_plain(args), **given)
        pending = [t for t in tensors_in((args, given)) if isinstance(t, PendingGradient)]
        if func is Tensor._values:
            first = pending[0]
            made = cls.around(first.gradients, first.variable, first.plain, values=True)
            made.iteration = first.iteration
            return made
        if func is UNSCALE:
            owners = list(dict.fromkeys(gradient.gradients for gradient in pending))
            for owner in owners:
                owner.show_to_scaler()
            result = func(*_plain(args), **_plain(given))
            for owner in owners:
                owner.make_pending()
            return result
        for gradient in pending:
            gradient.gradients.complete(gradient.variable, gradient.iteration)
        return func(*_plain(args), **_plain(given))

    def current(self) -> Tensor:
        """The gradient: a sparse one is another tensor once its rows have been added up."""
        with torch._C.DisableTorchFunctionSubclass():
            found = self.plain
            if found.is_sparse:
                now = plain_gradient(self.variable)
                found = found if now is None else now
            return found._values() if self.of_values else found


def plain_gradient(variable: VariableRecord) -> Tensor | None:
    """`parameter.grad` as a plain tensor."""
    gradient = variable.parameter.grad
    return gradient.plain if isinstance(gradient, PendingGradient) else gradient


def _plain(value: Any) -> Any:
    """The same structure with plain gradients in place of pending ones."""
    if isinstance(value, PendingGradient):
        return value.current()
    if type(value) in (tuple, list):
        return type(value)([_plain(item) for item in value])
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value


class PendingParameter(nn.Parameter):
    """Stands in for a parameter's class until its new value is here."""

    owner: ClassVar["PendingParameters"]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func in READS_NO_VALUE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **given)
        found = False
        for parameter in tensors_in((args, given)):
            if isinstance(parameter, PendingParameter):  # not any more where it comes twice
                parameter.owner.wait_for(parameter)
                found = True
        if not found:  # in some other container
            cls.owner.wait_for_all()
        return func(*args, **given)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self.owner.wait_for(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.owner.wait_for(self)
        return self.__reduce_ex__(protocol)


class PendingParameters:
    """Those of one plan. Used by the script's thread only, and by autograd's in backward passes.

    wait: until these variables are current.
    unguarded: deferred variables whose class cannot be changed: `step()` has to wait for them.
    """

    def __init__(
        self,
        variables: Iterable[VariableRecord],
        wait: Callable[[list[VariableRecord]], None],
    ):
        self._wait = wait
        self._variables: dict[int, VariableRecord] = {}
        self._classes: dict[int, tuple[type[Any], type[Any]]] = {}
        self._pending: dict[int, VariableRecord] = {}
        self.unguarded: list[VariableRecord] = []
        made: dict[type[Any], type[Any]] = {}
        for variable in variables:
            if variable.deferred:
                self._add(variable, made)

    def _add(self, variable: VariableRecord, made: dict[type[Any], type[Any]]) -> None:
        parameter = variable.parameter
        kind = type(parameter)
        bases = (PendingParameter,) if kind is nn.Parameter else (PendingParameter, kind)
        try:
            if kind not in made:
                made[kind] = type(f"Pending{kind.__name__}", bases, {"owner": self})
            parameter.__class__ = made[kind]
            parameter.__class__ = kind
        except TypeError:  # of another layout in memory
            self.unguarded.append(variable)
            return
        self._variables[id(parameter)] = variable
        self._classes[variable.index] = kind, made[kind]

    def mark(self, of_a_device: bool) -> None:
        """At the end of `step()`: marks the values that have not arrived. of_a_device: the host
        does not know which have."""
        for variable in self._variables.values():
            if (variable.missing_values or of_a_device) and variable.index not in self._pending:
                self._pending[variable.index] = variable
                variable.parameter.__class__ = self._classes[variable.index][1]

    def release(self, variables: Iterable[VariableRecord]) -> None:
        """These values are current, or no longer waited for."""
        if not self._pending:
            return
        for variable in variables:
            if self._pending.pop(variable.index, None) is not None:
                variable.parameter.__class__ = self._classes[variable.index][0]

    def release_all(self) -> None:
        self.release(list(self._pending.values()))

    def wait_for(self, parameter: Tensor) -> None:
        """Call before reading it."""
        found = [self._variables[id(parameter)]]
        self._wait(found)
        self.release(found)

    def wait_for_all(self) -> None:
        self._wait(list(self._pending.values()))
        self.release_all()
