"""Notices that the script has given a parameter another storage since the plan was attached.

`parameter.data = ...` is how averages of weights are swapped in, how `vector_to_parameters`
writes, and what `model.to()` does. Updates of a plan write through aliases of the storage that they
know, and gradients travel in views of flat buffers, so both have to follow. A parameter of another
shape, type or device, or one that the model no longer holds, does not fit the plan: it is refused
by name.
"""

from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from autosync.errors import NotSupported
from autosync.runtime.device.strides import dense_strides
from autosync.runtime.layout.records import Bucket, VariableRecord
from autosync.runtime.payloads.factors import FactorCapture
from autosync.runtime.updates.row_update import RowUpdate

Home = tuple[dict[str, Any], str]
"""A module's dictionary of parameters, and the key of one."""

Place = tuple[int, int]
"""A storage and an offset in it."""


class ParameterStorage:
    """Compares storages: a pass over all variables where forward and backward begin, and one at
    `step()`. By their pointers, unless a swapped value has none then."""

    def __init__(self, model: nn.Module, variables: list[VariableRecord]):
        self._model = model
        self._variables = variables
        self._parameters = [variable.parameter for variable in variables]
        homes = _homes(model)
        self._homes = [homes.get(id(p), ({"": p}, "")) for p in self._parameters]
        self._places: list[Place] = []
        self._strides: list[tuple[int, ...]] = []
        self._views = [v.view for v in variables if v.view is not None]
        self._view_places = [view.data_ptr() for view in self._views]
        self._captures = [v for v in variables if isinstance(v.carrier, FactorCapture)]
        self._pointers: list[int] = []
        self._moved: list[VariableRecord] = []
        self._note_homes()
        self._note_places()

    def check_forward(self) -> None:
        """At the start of a training forward: what tells of gradients must follow before it."""
        with torch._C.DisableTorchFunctionSubclass():  # values may be on their way
            self.check()
        for variable in self._moved:
            if variable.accumulator is not None and variable.parameter.requires_grad:
                variable.accumulator.follow()
        self._moved.clear()

    def check_backward(self) -> None:
        """At the first gradient of a backward pass; nothing is in flight.

        Raises:
            NotSupported: see `check`.
        """
        self.check()
        for variable in self._captures:
            if variable.accumulator is not None and not variable.accumulator.follows():
                raise _refusal(variable, "was converted between forward and backward")
        if list(map(Tensor.data_ptr, self._views)) != self._view_places:
            self._restore_views()

    def check_step(self) -> None:
        """At `step()`, where a storage may have been given other strides, too."""
        self.check()
        if list(map(Tensor.stride, self._parameters)) != self._strides:
            self._follow()

    def check(self) -> None:
        """Make the plan follow storages that were exchanged.

        Raises:
            NotSupported: a parameter has another shape, type or device, or left the model.
        """
        if not all(map(is_, map(dict.get, self._held, self._keys), self._parameters)):
            self._find_homes()
        pointers = list(map(Tensor.data_ptr, self._parameters))
        if pointers == self._pointers and all(pointers):  # storages that aliases keep from others
            return
        if list(map(_place, self._parameters)) != self._places:
            self._follow()
        self._pointers = pointers

    def _note_places(self) -> None:
        self._places = list(map(_place, self._parameters))
        self._strides = list(map(Tensor.stride, self._parameters))

    def _note_homes(self) -> None:
        self._held = [home for home, _ in self._homes]
        self._keys = [key for _, key in self._homes]

    def _find_homes(self) -> None:
        found = _homes(self._model)
        for place, variable in enumerate(self._variables):
            home, key = self._homes[place]
            if home.get(key) is variable.parameter:
                continue
            if id(variable.parameter) not in found:
                raise NotSupported(
                    f"variable {variable.name!r} is no longer the parameter that the model had "
                    "when the plan was attached, so nothing would train it.",
                    thing=f"variable {variable.name}",
                    value=variable.name,
                    remedy="Replace modules and parameters before autosync.distribute, and load "
                    "without assign=True.",
                )
            self._homes[place] = found[id(variable.parameter)]
        self._note_homes()

    def _follow(self) -> None:
        moved = [v for v in self._variables if not v.alias.is_set_to(v.parameter.detach())]
        for variable in moved:
            _check_fits(variable)
        for variable in moved:
            variable.alias.data = variable.parameter.detach()
            _follow_strides(variable)
            for bucket in variable.buckets:
                _follow_rows(bucket)
        self._moved += moved
        self._note_places()

    def _restore_views(self) -> None:
        """A gradient that the script saw was converted: buffers get their views back."""
        pieces = {
            id(view): (bucket, segment)
            for variable in self._variables
            for bucket in variable.buckets
            for _, segment, view in bucket.pieces
        }
        for view, place in zip(self._views, self._view_places, strict=True):
            if view.data_ptr() == place:
                continue
            bucket, segment = pieces[id(view)]
            found = view.detach()
            with torch.no_grad():
                view.data = segment.view_of(bucket.buffer)
                view.copy_(found)  # a gradient that adds up is the view itself


def _place(parameter: Tensor) -> Place:
    return parameter.untyped_storage()._cdata, int(parameter.storage_offset())


def _homes(model: nn.Module) -> dict[int, Home]:
    """Where modules hold the model's parameters, by their identity."""
    return {
        id(parameter): (module._parameters, key)
        for module in model.modules()
        if isinstance(module.__dict__.get("_parameters"), dict)  # others are in C++
        for key, parameter in module._parameters.items()
    }


def _follow_strides(variable: VariableRecord) -> None:
    """Where they have changed a gradient is no view of its buffer any more, since other ranks send
    its elements in the order that was agreed on."""
    view = variable.view
    if view is None or variable.carrier is not None:
        return
    if dense_strides(variable.alias) != dense_strides(view):
        variable.view = None


def _follow_rows(bucket: Bucket) -> None:
    if isinstance(bucket.update, RowUpdate):
        bucket.update.follow_tables()


def _check_fits(variable: VariableRecord) -> None:
    alias, parameter = variable.alias, variable.parameter
    for what, before, now in (
        ("shape", tuple(alias.shape), tuple(parameter.shape)),
        ("type", alias.dtype, parameter.dtype),
        ("device", alias.device, parameter.device),
    ):
        if before != now:
            raise _refusal(
                variable, f"has {what} {now}; when the plan was attached it had {before}"
            )


def _refusal(variable: VariableRecord, what: str) -> NotSupported:
    return NotSupported(
        f"variable {variable.name!r} {what}.",
        thing=f"variable {variable.name}",
        value=what,
        remedy="Convert or move the model before autosync.distribute; under it, train in lower "
        "precision by torch.autocast.",
    )
