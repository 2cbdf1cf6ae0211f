"""Parameters whose new values are still on their way: whoever reads one waits for it.

Where a plan runs into the next forward pass, `step()` returns before all values are here. Until
they are, such a parameter has a class of its own, whose operations wait first. So any read is
covered: by a module that shares the weight and runs for the first time, by an average of weights,
through `parameter.data`. The gates of the forward pass (`hooks/forward_gates.py`) wait for what
their modules read and give the class back before, so a training step pays for this nowhere else.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from autosync.runtime.execution.nested_tensors import tensors_in
from autosync.runtime.execution.pending_gradients import METADATA
from autosync.runtime.layout.records import VariableRecord

_GRAD: Any = Tensor.grad

READS_NO_VALUE = METADATA | {
    _GRAD.__get__,
    _GRAD.__set__,
    _GRAD.__delete__,
    Tensor.requires_grad.__set__,  # type: ignore[attr-defined]  # torch says bool
    Tensor.requires_grad_,
    Tensor.register_hook,
    Tensor.register_post_accumulate_grad_hook,
}
"""What may be done to a parameter while its value is on its way."""


class OwedParameter(nn.Parameter):
    """Stands in for a parameter's class while its new value is owed."""

    owner: ClassVar["OwedParameters"]

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
            if isinstance(parameter, OwedParameter):  # not any more where it comes twice
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


class OwedParameters:
    """Those of one plan. Only the script's thread comes here, in backward passes autograd's.

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
        self._owed: dict[int, VariableRecord] = {}
        self.unguarded: list[VariableRecord] = []
        made: dict[type[Any], type[Any]] = {}
        for variable in variables:
            if variable.deferred:
                self._add(variable, made)

    def _add(self, variable: VariableRecord, made: dict[type[Any], type[Any]]) -> None:
        parameter = variable.parameter
        kind = type(parameter)
        bases = (OwedParameter,) if kind is nn.Parameter else (OwedParameter, kind)
        try:
            if kind not in made:
                made[kind] = type(f"Owed{kind.__name__}", bases, {"owner": self})
            parameter.__class__ = made[kind]
            parameter.__class__ = kind
        except TypeError:  # of another layout in memory
            self.unguarded.append(variable)
            return
        self._variables[id(parameter)] = variable
        self._classes[variable.index] = kind, made[kind]

    def mark(self, of_a_device: bool) -> None:
        """At the end of `step()`: what is not here is owed. of_a_device: its host does not know."""
        for variable in self._variables.values():
            if (variable.missing_values or of_a_device) and variable.index not in self._owed:
                self._owed[variable.index] = variable
                variable.parameter.__class__ = self._classes[variable.index][1]

    def release(self, variables: Iterable[VariableRecord]) -> None:
        """These are current, or nobody waits for them any more."""
        if not self._owed:
            return
        for variable in variables:
            if self._owed.pop(variable.index, None) is not None:
                variable.parameter.__class__ = self._classes[variable.index][0]

    def release_all(self) -> None:
        self.release(list(self._owed.values()))

    def wait_for(self, parameter: Tensor) -> None:
        """Before somebody reads it."""
        found = [self._variables[id(parameter)]]
        self._wait(found)
        self.release(found)

    def wait_for_all(self) -> None:
        self._wait(list(self._owed.values()))
        self.release_all()
