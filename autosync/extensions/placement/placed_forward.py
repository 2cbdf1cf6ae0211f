"""The forward of a placed module: samples go to its ranks, what they make of them comes back.

Ranks that compute none of it have to know the form of its outputs, and every sample must be treated
by itself.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autosync.errors import AutosyncError, NotSupported
from autosync.extensions.placement.document import PlacedModule, dealt_rows
from autosync.extensions.placement.row_exchange import RowExchange, no_rows, route_between, tied
from autosync.runtime.execution.pending import tensors_in
from autosync.runtime.transport.refusals import reported

ROUNDING = 1e-3
"""Of the largest output: one sample alone may be computed in another order than in its batch. A mix
of samples changes outputs by about their own size."""

ROUNDINGS = 8
"""As many roundings of half precision may differ, which are coarser."""

UNUSABLE = -1
"""In place of a number of rows: this rank's arguments cannot be dealt."""

REFUSED = "!"
"""Prefix of a refusal that a rank reports in place of an output form."""

PLAIN = (bool, int, float, str, torch.dtype, type(None))
"""Types of arguments whose values decide what a module gives out, as a flag does."""


class PlacedForward:
    """Stands in the place of `module.forward`; every call is a collective over all ranks.

    All tensors among the arguments are dealt by their first dimension; other arguments must be the
    same on all ranks. What a module gives out (shapes, types) is compared between the ranks that
    compute it, once for each form of its arguments, and with this one later.
    """

    _torchdynamo_disable = True  # as `hooks.torch_compile.opaque`

    def __init__(self, name: str, module: nn.Module, placed: PlacedModule, exchange: RowExchange):
        self._name = name
        self._module = module
        self._forward = module.forward
        self._placed = placed
        self._exchange = exchange
        self._forms: dict[int, OutputForm] = {}
        self._checked: set[int] = set()  # ranks that have compared a sample alone

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() != -1:
            raise self._refusal(
                "a checkpoint runs it again in the backward pass, where ranks that compute none of "
                "it do not",
                "Checkpoint parts of the model without placed modules.",
            )
        exchange, rank = self._exchange, self._exchange.rank
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        nested = len(list(tensors_in((args, kwargs)))) > len(tensors)
        signature = self._signature(args, kwargs)
        counts = self._agreed_rows(tensors, nested, signature)
        target = self._target(sum(counts))
        there = route_between(counts, target, rank)
        dealt = iter([exchange.deal(tensor, there) for tensor in tensors])
        own = [next(dealt) if isinstance(value, Tensor) else value for value in args]
        named = {k: next(dealt) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        source = next(other for other, rows in enumerate(target) if rows)
        output, text, failure = self._computed(own, named, target[rank])
        form = self._forms.get(signature)
        checking = {other for other, rows in enumerate(target) if rows > 1} - self._checked
        if form is None or checking:
            form = self._forms[signature] = self._agreed_form(text, source, failure)
            self._checked |= checking
        in_training = not all(target)  # else its parameters may have been frozen since
        if failure is None and text and OutputForm.from_text(text).differs(form, in_training):
            failure = self._changing("has changed")
        if failure is not None:
            exchange.stop(self._reported(failure))
            raise failure
        inputs = [value for value in (*own, *named.values()) if isinstance(value, Tensor)]
        items: tuple[Any, ...] = items_of(output)
        if target[rank]:
            items = tuple(None if item is None else tied(item, inputs) for item in items)
        else:
            items = tuple(
                item and no_rows(inputs, item.no_rows(), item.trains) for item in form.items
            )
        back = there.back
        return form.joined([None if item is None else exchange.deal(item, back) for item in items])

    def _target(self, rows: int) -> tuple[int, ...]:
        """How many of all samples each rank computes."""
        found = [0] * len(self._exchange.shares)
        dealt = dealt_rows(self._placed.shares, rows)
        for rank, count in zip(self._placed.ranks, dealt, strict=True):
            found[rank] = count
        return tuple(found)

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """What must be the same on all ranks, and decides what the module gives out."""
        parts: list[Any] = [self._module.training, torch.is_grad_enabled()]
        parts += [torch.is_autocast_enabled("cpu"), len(args), sorted(kwargs)]
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor):
                parts.append((tuple(value.shape[1:]), str(value.dtype), value.requires_grad))
            else:
                parts.append(value if isinstance(value, PLAIN) else type(value).__name__)
        digest = hashlib.sha256(repr(parts).encode()).digest()
        return int.from_bytes(digest[:7])

    def _agreed_rows(self, tensors: Sequence[Tensor], nested: bool, signature: int) -> list[int]:
        """The rows of every rank. nested: there are tensors inside of other arguments.

        Raises:
            NotSupported: on every rank, where arguments of some rank cannot be dealt, or differ in
                more than their number of samples; or no rank has any.
        """
        rows = {len(tensor) if tensor.dim() else UNUSABLE for tensor in tensors}
        mine = rows.pop() if len(rows) == 1 and not nested else UNUSABLE
        reports = self._exchange.gather([mine, signature])
        for rank, (count, form) in enumerate(reports):
            if count == UNUSABLE:
                raise self._refusal(
                    f"on rank {rank} its arguments are not tensors with one number of samples each",
                    "Place modules that take tensors, batch first, and nothing nested.",
                )
            if form != reports[0][1]:
                raise self._refusal(
                    f"its arguments on rank {rank} differ from rank 0's in shape (without the "
                    "batch), type, value, or what is trained",
                    "Pad samples to one shape on all ranks, or leave the module with the replicas.",
                )
        counts = [count for count, _ in reports]
        if not sum(counts):
            raise self._refusal("no rank has a sample for it", "Leave out empty batches.")
        return counts

    def _computed(
        self, args: list[Any], kwargs: dict[str, Any], rows: int
    ) -> tuple[Any, str, Exception | None]:
        """Of a rank's rows: what the module gives out, its form as text, or why there is none."""
        if not rows:
            return None, "", None
        try:
            if rows > 1 and self._exchange.rank not in self._checked:
                check_samples_alone(self._name, self._module, self._forward, tuple(args), kwargs)
            output = self._forward(*args, **kwargs)
            return output, form_of(self._name, output, rows).to_text(), None
        except Exception as error:  # the module's own code may raise anything
            return None, f"{REFUSED}{self._reported(error).message}", error

    def _reported(self, error: Exception) -> AutosyncError:
        return reported(error, f"module {self._name!r}")

    def _agreed_form(self, text: str, source: int, failure: Exception | None) -> "OutputForm":
        """The form that `source` reports. Raises NotSupported on every rank where one refuses or
        fails, or where two that compute give out different forms."""
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) if text else 0
        reports = self._exchange.gather([failure is not None, digest])
        source = next((rank for rank, (refuses, _) in enumerate(reports) if refuses), source)
        reported = self._exchange.broadcast_text(text, source)
        if failure is not None:
            raise failure
        if reported.startswith(REFUSED):
            why = reported.removeprefix(REFUSED)
            raise self._refusal(f"rank {source} refuses it: {why}", "See there.")
        for rank, (_, other) in enumerate(reports):
            if other not in (0, reports[source][1]):
                raise self._changing(f"on rank {rank} differs from rank {source}'s")
        return OutputForm.from_text(reported)

    def _changing(self, how: str) -> NotSupported:
        return self._refusal(
            f"what it gives out {how} in shape (without the batch), type, or what is trained",
            "Let values decide none of these, or leave the module with the replicas.",
        )

    def _refusal(self, why: str, remedy: str) -> NotSupported:
        return NotSupported(
            f"module {self._name!r} is placed on ranks {self._placed.ranks}, but {why}.",
            thing=f"placement of {self._name}",
            value=self._placed.ranks,
            remedy=remedy,
        )


@dataclass(frozen=True, slots=True)
class TensorForm:
    """tail: the shape without the batch dimension. trains: it has a gradient."""

    tail: tuple[int, ...]
    dtype: str
    trains: bool

    def no_rows(self) -> Tensor:
        return torch.empty((0, *self.tail), dtype=getattr(torch, self.dtype))


@dataclass(frozen=True, slots=True)
class OutputForm:
    """items: of a tuple; a single one of a bare tensor. An item may be None."""

    items: tuple[TensorForm | None, ...]
    is_tuple: bool

    def to_text(self) -> str:
        return json.dumps([self.is_tuple, [item and asdict(item) for item in self.items]])

    @classmethod
    def from_text(cls, text: str) -> "OutputForm":
        is_tuple, items = json.loads(text)
        forms = tuple(
            item and TensorForm(tuple(item["tail"]), item["dtype"], item["trains"])
            for item in items
        )
        return cls(forms, is_tuple)

    def differs(self, other: "OutputForm", in_training: bool) -> bool:
        """in_training: whether what is trained counts, too."""
        if in_training:
            return self != other
        mine, others = (
            [item and (item.tail, item.dtype) for item in form.items] for form in (self, other)
        )
        return self.is_tuple != other.is_tuple or mine != others

    def joined(self, items: list[Tensor | None]) -> Any:
        return tuple(items) if self.is_tuple else items[0]


def items_of(output: Any) -> tuple[Any, ...]:
    return tuple(output) if isinstance(output, tuple | list) else (output,)


def form_of(name: str, output: Any, rows: int) -> OutputForm:
    """
    Raises:
        NotSupported: it is no tensor, or tuple of them, of `rows` samples each.
    """
    forms: list[TensorForm | None] = []
    for item in items_of(output):
        if item is None:
            forms.append(None)
            continue
        if not isinstance(item, Tensor) or item.dim() < 1 or len(item) != rows:
            what = tuple(item.shape) if isinstance(item, Tensor) else type(item).__name__
            raise NotSupported(
                f"module {name!r} is placed, but of {rows} samples it gives out {what}: its first "
                "dimension is not the batch.",
                thing=f"placement of {name}",
                value=what,
                remedy="Place modules that give out tensors, or tuples of them, batch first.",
            )
        dtype = str(item.dtype).removeprefix("torch.")
        forms.append(TensorForm(tuple(item.shape[1:]), dtype, item.requires_grad))
    return OutputForm(tuple(forms), isinstance(output, tuple | list))


def check_samples_alone(
    name: str, module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Compare the first sample alone with the same in its batch, in evaluation mode.

    Raises:
        NotSupported: they differ by more than rounding, or the module changes its buffers.
    """
    modes = [(part, part.training) for part in module.modules()]
    versions = [buffer._version for buffer in module.buffers()]
    module.eval()
    try:
        with torch.no_grad():
            together = items_of(forward(*args, **kwargs))
            first = [_first(value) for value in args]
            alone = items_of(forward(*first, **{k: _first(v) for k, v in kwargs.items()}))
    finally:
        for part, training in modes:
            part.training = training
    rounding = _rounding((*module.parameters(), *together))
    for one, many in zip(alone, together, strict=True):
        if isinstance(many, Tensor) and not _agree(one, many, rounding):
            raise NotSupported(
                f"module {name!r} is placed, but what it makes of one sample depends on the others "
                "in the batch.",
                thing=f"placement of {name}",
                remedy="Leave it with the replicas; where its batch is not the first dimension, "
                "make it so (batch_first=True).",
            )
    if [buffer._version for buffer in module.buffers()] != versions:
        raise NotSupported(
            f"module {name!r} is placed, but changes its buffers as it runs.",
            thing=f"placement of {name}",
            remedy="Leave it with the replicas.",
        )


def _first(value: Any) -> Any:
    return value[:1] if isinstance(value, Tensor) else value


def _agree(one: Any, many: Tensor, rounding: float) -> bool:
    if not isinstance(one, Tensor) or one.shape != many[:1].shape:
        return False
    if not (many.is_floating_point() or many.is_complex()):
        return bool((one == many[:1]).all())
    if not many.numel():
        return True
    largest = max(float(many.abs().max()), 1e-30)
    return float((one - many[:1]).abs().max()) <= rounding * largest


def _rounding(tensors: Iterable[Any]) -> float:
    """tensors: a module's parameters, and what it gives out. See `ROUNDING`; coarser where some are
    of half precision, or `torch.autocast` computes in it."""
    kinds = {each.dtype for each in tensors if isinstance(each, Tensor)}
    if torch.is_autocast_enabled("cpu"):
        kinds.add(torch.get_autocast_dtype("cpu"))
    real = (kind for kind in kinds if kind.is_floating_point or kind.is_complex)
    return max([ROUNDING, *(ROUNDINGS * torch.finfo(kind).eps for kind in real)])
