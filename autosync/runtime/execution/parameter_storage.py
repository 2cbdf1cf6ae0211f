"""Notices that the script has given a parameter another storage since the plan was attached.

`parameter.data = ...` is how averages of weights are swapped in, how `vector_to_parameters`
writes, and what `model.to()` does. Updates of a plan write through aliases of the storage that they
know, and gradients travel in views of flat buffers, so both have to follow. A parameter of another
shape, type or device does not fit the plan: it is refused by name.
"""

import torch
from torch import Tensor, nn

from autosync.errors import NotSupported
from autosync.runtime.compression.factors import FactorCapture
from autosync.runtime.device.strides import dense_strides
from autosync.runtime.execution.model_structure import ModelStructure
from autosync.runtime.layout.records import Bucket, VariableRecord
from autosync.runtime.updates.row_update import RowUpdate

Place = tuple[int, int]
"""A storage and an offset in it."""


class ParameterStorage:
    """Compares storages: a pass over all variables where forward and backward begin, and one at
    `step()`. By their pointers, unless a swapped value has none then."""

    def __init__(self, model: nn.Module, variables: list[VariableRecord]):
        self._variables = variables
        self._parameters = [variable.parameter for variable in variables]
        self._structure = ModelStructure(model, self._parameters)
        self._places: list[Place] = []
        self._strides: list[tuple[int, ...]] = []
        self._views = [v.view for v in variables if v.view is not None]
        self._view_places = [view.data_ptr() for view in self._views]
        self._captures = [v for v in variables if isinstance(v.packer, FactorCapture)]
        self._pointers: list[int] = []
        self._moved: list[VariableRecord] = []
        self._note_places()

    def check_forward(self) -> None:
        """At the start of a training forward: what tells of gradients must follow before it."""
        with torch._C.DisableTorchFunctionSubclass():  # values may be on their way
            self._structure.check()
            self.check()
        for variable in self._moved:
            if variable.accumulator is not None and variable.parameter.requires_grad:
                variable.accumulator.follow()
        self._moved.clear()

    def check_backward(self) -> None:
        """At the first gradient of a backward pass; nothing is in flight.

        Raises:
            NotSupported: see `check`; or the model no longer holds the plan's parameters.
        """
        self._structure.check()
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
            NotSupported: a parameter has another shape, type or device.
        """
        pointers = list(map(Tensor.data_ptr, self._parameters))
        if pointers == self._pointers and all(pointers):  # storages that aliases keep from others
            return
        if list(map(_place, self._parameters)) != self._places:
            self._follow()
        self._pointers = pointers

    def _note_places(self) -> None:
        self._places = list(map(_place, self._parameters))
        self._strides = list(map(Tensor.stride, self._parameters))

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


def _follow_strides(variable: VariableRecord) -> None:
    """Where they have changed a gradient is no view of its buffer any more, since other ranks send
    its elements in the order that was agreed on."""
    view = variable.view
    if view is None or variable.packer is not None:
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
