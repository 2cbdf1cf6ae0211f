"""Detects changes in a model that a plan cannot follow, during training: other parameters, another
storage, and backward passes inside another one, with a graph of their own, or with updates
inside."""

import sys
from collections.abc import Iterable
from itertools import chain
from operator import is_, itemgetter
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from autosync.errors import NotSupported
from autosync.runtime.compression.factors import FactorCapture, check_unhooked
from autosync.runtime.device.model_tensors import dense_strides
from autosync.runtime.layout.records import Bucket, VariableRecord
from autosync.runtime.updates.part_updates import RowUpdate

KEYS = ("_modules", "_parameters")
PARTS = itemgetter(*KEYS)
"""Keys of a module's `__dict__`, read each time: deleting from a sequence replaces it."""

Place = tuple[int, int]
"""A storage and an offset in it."""

FUNCTIONS_BACKWARD = BackwardCFunction.apply.__code__
"""Through it autograd calls the backward of a function that is written in Python."""


class ModelStructure:
    """Notices that the script has replaced, added or removed modules and parameters of a model.
    Compares what modules hold with what they held: one pass over identities, 0.2 microseconds a
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
        """Raises NotSupported if a planned parameter has left the model, or a trainable one was
        added. Frozen parameters may be added and removed."""
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


class ParameterStorage:
    """Notices that the script has given a parameter another storage since the plan was attached.

    `parameter.data = ...` is how averages of weights are put in, how `vector_to_parameters`
    writes, and what `model.to()` does. Updates of a plan write through aliases of the storage that
    they know, and gradients travel in views of flat buffers, so both have to follow. A parameter of
    another shape, type or device does not fit the plan: it is refused by name.

    Compares storages: a pass over all variables where forward and backward begin, and one at
    `step()`. By their pointers, unless a value waits elsewhere and has none then."""

    def __init__(self, model: nn.Module, variables: list[VariableRecord]):
        self._variables = variables
        self._parameters = [variable.parameter for variable in variables]
        self._structure = ModelStructure(model, self._parameters)
        self._places: list[Place] = []
        self._strides: list[tuple[int, ...]] = []
        self._viewed = [v for v in variables if v.view is not None]
        self._view_places = [v.pieces[0][1].data_ptr() for v in self._viewed]
        self._captures = [v for v in variables if isinstance(v.packer, FactorCapture)]
        self._pointers: list[int] = []
        self._moved: list[VariableRecord] = []
        self._note_places()

    def check_forward(self) -> None:
        """At the start of a training forward, which the accumulators' nodes become a part of."""
        with torch._C.DisableTorchFunctionSubclass():  # values may be on their way
            self._structure.check()
            self.check()
            for variable in self._captures:
                check_unhooked(variable)
        for variable in self._moved:
            if variable.accumulator is not None and variable.parameter.requires_grad:
                variable.accumulator.follow()
        self._moved.clear()

    def check_backward(self) -> None:
        """At the first gradient of a backward pass; nothing is in flight.

        Raises:
            NotSupported: see `check` and `check_unhooked`; or the model no longer holds the plan's
                parameters.
        """
        self._structure.check()
        self.check()
        for variable in self._captures:
            check_unhooked(variable)
            if not variable.parameter.requires_grad:  # frozen since: it has no node
                continue
            if variable.accumulator is not None and not variable.accumulator.follows():
                raise _refusal(variable, "was converted between forward and backward")
        if [v.view.data_ptr() for v in self._viewed if v.view is not None] != self._view_places:
            self._restore_views()

    def check_step(self) -> None:
        """At `step()`, where a storage may have been given other strides, too."""
        self.check()
        if list(map(Tensor.stride, self._parameters)) != self._strides:
            self._follow()

    def check(self) -> None:
        """Make the plan follow storages that were replaced.

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
        first: dict[Place, VariableRecord] = {}
        for variable, place in zip(self._variables, self._places, strict=True):
            if not variable.size_bytes:  # lies where its neighbour in a flat buffer begins
                continue
            other = first.setdefault(place, variable)
            in_turn = all(v.whole and not v.deferred for v in (variable, other))
            if other is not variable and not in_turn:
                raise _in_one_place(variable, other)

    def _follow(self) -> None:
        moved = [v for v in self._variables if not v.alias.is_set_to(v.parameter.detach())]
        for variable in moved:
            _check_fits(variable)
        for variable in moved:
            variable.alias.data = variable.parameter.detach()
            _follow_strides(variable)
            for bucket in variable.buckets:
                _follow_rows(bucket)
        self._viewed = [v for v in self._variables if v.view is not None]
        self._view_places = [v.pieces[0][1].data_ptr() for v in self._viewed]
        self._moved += moved
        self._note_places()

    def _restore_views(self) -> None:
        """A gradient that the script saw was converted: it becomes a view of its buffer again."""
        for variable, address in zip(self._viewed, self._view_places, strict=True):
            view = variable.view
            if view is None or view.data_ptr() == address:
                continue
            found = view.detach()
            with torch.no_grad():
                view.data = variable.pieces[0][1]
                view.copy_(found)  # a gradient that adds up is the view itself


def _place(parameter: Tensor) -> Place:
    return parameter.untyped_storage()._cdata, int(parameter.storage_offset())


def _follow_strides(variable: VariableRecord) -> None:
    """Where strides have changed, a gradient is no longer a view of its buffer, since other ranks
    send its elements in the agreed order."""
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


def _in_one_place(variable: VariableRecord, other: VariableRecord) -> NotSupported:
    return NotSupported(
        f"variable {variable.name!r} lies in the memory of {other.name!r}, as by "
        "`b.data = a.data`: under this plan neither update reads what the other has written.",
        thing=f"variable {variable.name}",
        value=other.name,
        remedy="Share one parameter, `b.weight = a.weight`, before the optimizer is made, or use a "
        "strategy without owned or sharded updates and without overlap of the forward pass.",
    )


def within_backward() -> bool:
    """Whether a backward pass is running: a forward within it is one of a checkpoint."""
    running: int = torch._C._current_graph_task_id()
    return running != -1


def inside_another() -> bool:
    """Whether a backward pass runs inside another one. Called by a hook of a gradient, which
    otherwise never runs within a function's backward."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is FUNCTIONS_BACKWARD:
            return True
        frame = frame.f_back
    return False


def unknown_end() -> NotSupported:
    """Hooks of the model's outputs mark where the whole backward pass ends."""
    return NotSupported(
        "a reentrant checkpoint runs its own backward pass, and the model itself was not called, "
        "so where the whole backward pass ends is not known.",
        thing="backward",
        remedy="Checkpoint with use_reentrant=False, or call model(...) itself.",
    )


def ready_twice(variable: str) -> NotSupported:
    return NotSupported(
        f"the gradient of {variable!r} became ready twice in one backward pass.",
        thing=f"variable {variable}",
        remedy="Where reentrant checkpoints share a weight, use use_reentrant=False; after "
        "a backward pass that failed, start all ranks again from the last checkpoint.",
    )


def with_graph() -> NotSupported:
    """Refuse a backward pass with a graph: autograd cannot differentiate a reduction over ranks."""
    return NotSupported(
        "backward(create_graph=True) leaves gradients with a graph of their own, which averages "
        "over ranks do not have.",
        thing="backward",
        value="create_graph=True",
        remedy="Take what needs the graph by torch.autograd.grad(loss, parameters, "
        "create_graph=True) and call backward() on the loss without create_graph.",
    )
