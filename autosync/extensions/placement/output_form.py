"""What a placed module gives out, as ranks that compute none of it have to know it; and whether it
treats every sample by itself."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autosync.errors import NotSupported

ROUNDING = 1e-3
"""Of the largest output: one sample alone may be computed in another order than in its batch. A mix
of samples changes outputs by about their own size."""


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
    for one, many in zip(alone, together, strict=True):
        if isinstance(many, Tensor) and not _agree(one, many):
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


def _agree(one: Any, many: Tensor) -> bool:
    if not isinstance(one, Tensor) or one.shape != many[:1].shape:
        return False
    if not many.is_floating_point():
        return bool((one == many[:1]).all())
    largest = float(many.abs().max()) if many.numel() else 0.0
    return not many.numel() or float((one - many[:1]).abs().max()) <= ROUNDING * max(largest, 1e-30)
