"""Tensors that ranks send each other outside of a plan's messages: rank 0's values when a plan is
attached, and optimizer state from the ranks that hold it. Nothing is pickled.

Tensors travel packed, one behind the other in a buffer of bytes; small ones share a chunk, large
ones are split.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autosync.errors import NotSupported
from autosync.runtime.device.model_tensors import dense_strides
from autosync.runtime.transport.agreement import (
    RankReport,
    exchange_reports,
    gather_texts,
    place_of,
)

CPU = torch.device("cpu")

CHUNK_BYTES = 16 << 20
"""Of tensors that travel in one operation of the backend, and lie in one buffer meanwhile."""


# --- tensors in a buffer of bytes


class PackedTensors:
    """Tensors one behind the other in a flat buffer of bytes, each at a multiple of its element
    size."""

    def __init__(self, flat: Tensor):
        self._flat = flat
        self._end = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next one, as a view of the buffer."""
        start, self._end = _place_behind(self._end, math.prod(shape), dtype)
        return self._flat[start : self._end].view(dtype).view(tuple(shape))

    def take_like(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Views of the next ones, of the shapes and types of these tensors."""
        return [self.take(tensor.shape, tensor.dtype) for tensor in tensors]


def _place_behind(end: int, elements: int, dtype: torch.dtype) -> tuple[int, int]:
    """The first byte of a tensor that lies behind byte `end`, and the one behind it."""
    start = -(-end // dtype.itemsize) * dtype.itemsize
    return start, start + elements * dtype.itemsize


def packed_bytes(tensors: Iterable[Tensor]) -> int:
    """Of the buffer that holds them."""
    end = 0
    for tensor in tensors:
        _, end = _place_behind(end, tensor.numel(), tensor.dtype)
    return end


def packed(tensors: Sequence[Tensor], device: torch.device = CPU) -> Tensor:
    """Their values in a buffer on the device. tensors: of any layout."""
    flat = torch.empty(packed_bytes(tensors), dtype=torch.uint8, device=device)
    for place, tensor in zip(PackedTensors(flat).take_like(tensors), tensors, strict=True):
        place.copy_(tensor.detach())
    return flat


Transfer = Callable[[Tensor], None]
"""Moves a buffer of bytes from its source to whoever receives; a collective."""


def transferred(
    tensors: Iterable[Tensor], sends: bool, transfer: Transfer, device: torch.device = CPU
) -> Iterator[Tensor]:
    """Send the tensors in chunks, or receive into them; yields each when all of it is here. Every
    rank has tensors of the same shapes and types, and exhausts it.

    tensors: of any layout, which each keeps; taken one by one. device: whose memory is moved.
    """
    chunk: list[Tensor] = []
    end = 0  # of the chunk, in bytes

    def move(parts: Sequence[Tensor]) -> None:
        if not (size_bytes := packed_bytes(parts)):
            return
        if sends:
            transfer(packed(parts, device))
        else:
            flat = torch.empty(size_bytes, dtype=torch.uint8, device=device)
            transfer(flat)
            for place, part in zip(PackedTensors(flat).take_like(parts), parts, strict=True):
                part.copy_(place)

    for tensor in tensors:
        _, behind = _place_behind(end, tensor.numel(), tensor.dtype)
        if behind > CHUNK_BYTES:
            move(chunk)
            yield from chunk
            chunk, end, behind = [], 0, tensor.nbytes
        if tensor.nbytes <= CHUNK_BYTES:
            chunk.append(tensor)
            end = behind
            continue
        values = tensor.contiguous()  # the tensor itself, where it is
        for part in values.view(-1).split(max(1, CHUNK_BYTES // tensor.element_size())):
            move([part])
        if not sends and values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values)
        yield tensor
    move(chunk)
    yield from chunk


def _broadcast(group: Any, source: int, flat: Tensor) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = source
    group.broadcast([flat], options).wait()


def _send(group: Any, source: int, to: int, flat: Tensor) -> None:
    if source == group.rank():
        group.send([flat], to, 0).wait()
    else:
        group.recv([flat], source, 0).wait()


# --- values of rank 0


def share_initial_values(control: Any, model: nn.Module, on_device: Any = None) -> None:
    """Every rank gets rank 0's parameters and buffers, as with torch's DDP. A collective.

    control: a process group, through which go what is in host memory and, without `on_device`, all
    values. on_device: of the same ranks, one that moves the memory of the model's device.

    Raises:
        InvalidInput: on every rank, where one has other tensors than rank 0: a broadcast between
            two sizes would end the process, or never.
    """
    exchange_reports(RankReport(tensors=tensor_signatures(model)), control)
    held = [t.detach() for t in (*model.parameters(), *model.buffers()) if t.numel()]
    for device in dict.fromkeys(tensor.device for tensor in held):
        here = [tensor for tensor in held if tensor.device == device]
        through_host = on_device is None or device.type == "cpu"
        group, place = (control, place_of(control)) if through_host else (on_device, device)
        for _ in transferred(here, group.rank() == 0, partial(_broadcast, group, 0), place):
            pass


def tensor_signatures(model: nn.Module) -> dict[str, str]:
    """Type and shape of its parameters and buffers, by name, in the order in which values are sent;
    of parameters in another than row-major order their strides too, which their gradients travel
    in."""
    held = [*model.named_parameters(), *model.named_buffers()]
    found = {name: f"{tensor.dtype}{list(tensor.shape)}" for name, tensor in held}
    for name, parameter in model.named_parameters():
        if (strides := dense_strides(parameter)) is not None:
            found[name] += f" of strides {list(strides)}"
    return found


# --- states of any form: JSON of their structure, their tensors packed

Key = tuple[int, ...]

Leaf = tuple[list[int], torch.dtype, list[int] | None]
"""Of a tensor that travels: shape, type, and strides where it is dense in another than row-major
order, which it keeps."""


def exchange_states(
    group: Any, mine: Sequence[tuple[Key, Any]], to: int | None = None
) -> Iterator[tuple[Key, Any]]:
    """The states that all ranks hold, one after the other; of a key that several ranks hold, the
    first rank's. Tensors that were received are in host memory; this rank's own are as given.

    A collective over `group`, of gloo: every rank has to exhaust it, also those for which nothing
    comes. to: the only rank that receives; by default every rank does.

    Raises:
        NotSupported: on every rank, where one holds a state that is no tensor, number, text, or
            list or dictionary of these.
    """
    tensors, text_of_mine = _described(mine)
    seen: set[Key] = set()
    for source, text in enumerate(gather_texts(group, text_of_mine)):
        entries = json.loads(text)
        if "refused" in entries:
            raise _unknown_state(*entries["refused"])
        own = iter(tensors if source == group.rank() else ())
        kept: list[tuple[Key, Any, Any]] = []
        leaves: list[Leaf] = []
        sent: list[Tensor] = []
        for number, (listed, form) in enumerate(entries["states"]):
            of_state = list(_leaves(form))
            of_mine = list(islice(own, len(of_state)))
            if tuple(listed) not in seen:
                seen.add(tuple(listed))
                kept.append((tuple(listed), form, mine[number][1] if of_mine else None))
                leaves += of_state
                sent += of_mine
        coming = _travelling(group, source, to, leaves, sent)
        for key, form, state in kept:
            received = list(islice(coming, sum(1 for _ in _leaves(form))))
            if to in (None, group.rank()):
                yield key, _rebuilt(form, iter(received)) if state is None else state


def _travelling(
    group: Any, source: int, to: int | None, leaves: Sequence[Leaf], own: Sequence[Tensor]
) -> Iterator[Tensor | None]:
    """The tensors of one rank. None on ranks that neither hold nor receive them. own: on the rank
    that holds them."""
    sends = source == group.rank()
    receives = not sends and to in (None, group.rank())
    if not receives and (not sends or to == source):
        yield from own or repeat(None, len(leaves))
        return
    transfer = (
        partial(_broadcast, group, source) if to is None else partial(_send, group, source, to)
    )
    made = (_empty(*leaf) for leaf in leaves)
    yield from transferred(own if sends else made, sends, transfer)


def _empty(shape: list[int], dtype: torch.dtype, strides: list[int] | None) -> Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


def _described(states: Sequence[tuple[Key, Any]]) -> tuple[list[Tensor], str]:
    """The tensors of states, and JSON of everything else."""
    tensors: list[Tensor] = []
    try:
        entries = {"states": [[list(key), _form(state, "", tensors)] for key, state in states]}
    except NotSupported as error:
        return [], json.dumps({"refused": error.value})
    return tensors, json.dumps(entries)


def _form(value: Any, name: str, tensors: list[Tensor]) -> Any:
    match value:
        case Tensor() if value.is_sparse:
            parts = [value.coalesce()._indices(), value.coalesce()._values()]
            return {"sparse": list(value.shape), "of": [_form(t, name, tensors) for t in parts]}
        case Tensor() if value.dim() == 0 and not value.is_complex():
            return {"scalar": value.item(), "dtype": _dtype_name(value)}
        case Tensor():
            tensors.append(value.detach())
            return {
                "tensor": list(value.shape),
                "dtype": _dtype_name(value),
                "strides": dense_strides(value),
            }
        case None | bool() | int() | float() | str():
            return {"plain": value}
        case dict() if all(isinstance(key, str | int) for key in value):
            return {"dict": [[key, _form(v, str(key), tensors)] for key, v in value.items()]}
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [_form(item, name, tensors) for item in value]}
    raise _unknown_state(name, type(value).__name__)


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _leaves(form: Any) -> Iterator[Leaf]:
    """Every tensor that travels as bytes, in the order of `_described`."""
    if "tensor" in form:
        yield form["tensor"], getattr(torch, form["dtype"]), form["strides"]
    for inner in _inner(form):
        yield from _leaves(inner)


def _inner(form: Any) -> Iterable[Any]:
    if "dict" in form:
        return [item for _, item in form["dict"]]
    return next((form[kind] for kind in ("list", "tuple", "of") if kind in form), [])


def _rebuilt(form: Any, tensors: Iterator[Any]) -> Any:
    if "tensor" in form:
        return next(tensors)
    if "scalar" in form:
        return torch.tensor(form["scalar"], dtype=getattr(torch, form["dtype"]), device="cpu")
    if "plain" in form:
        return form["plain"]
    if "dict" in form:
        return {key: _rebuilt(item, tensors) for key, item in form["dict"]}
    items = [_rebuilt(item, tensors) for item in _inner(form)]
    if "sparse" in form:
        indices, values = items
        made = torch.sparse_coo_tensor(indices, values, form["sparse"], check_invariants=False)
        return made._coalesced_(True)
    return items if "list" in form else tuple(items)


def _unknown_state(name: str, kind: str) -> NotSupported:
    return NotSupported(
        f"the optimizer's state {name!r} is a {kind}, which no rank can send to another.",
        thing=f"optimizer.state, {name}",
        value=(name, kind),
        remedy="Keep tensors, numbers and text, or lists and dictionaries of these in the "
        "optimizer's state.",
    )
