"""Sends optimizer state from the ranks that hold it: its form as JSON, its tensors in pieces of
bounded size. Nothing is pickled."""

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, repeat
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autosync.errors import NotSupported
from autosync.runtime.transport.agreement import gather_texts

PIECE_BYTES = 16 * 2**20
"""Of tensors in one operation of the backend."""

Key = tuple[int, ...]

Leaf = tuple[list[int], torch.dtype]
"""Shape and type of a tensor that travels."""


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
        coming = _stream(group, source, to, leaves, sent)
        for key, form, state in kept:
            received = list(islice(coming, sum(1 for _ in _leaves(form))))
            if to in (None, group.rank()):
                yield key, _rebuilt(form, iter(received)) if state is None else state


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
            return {"tensor": list(value.shape), "dtype": _dtype_name(value)}
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
        yield form["tensor"], getattr(torch, form["dtype"])
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


def _stream(
    group: Any, source: int, to: int | None, leaves: Sequence[Leaf], own: Sequence[Tensor]
) -> Iterator[Tensor | None]:
    """The tensors of one rank, each when all of it is here: small ones share an operation. None on
    ranks that neither hold nor receive them. own: on the rank that holds them."""
    receives = source != group.rank() and to in (None, group.rank())
    if not receives and (source != group.rank() or to == source):
        yield from own or repeat(None, len(leaves))
        return
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in leaves]
    ends = list(accumulate(sizes))
    flats = [_bytes_of(tensor) for tensor in own]
    data, begin, end = torch.empty(0, dtype=torch.uint8, device="cpu"), 0, 0
    for number, (shape, dtype) in enumerate(leaves):
        whole = own[number] if own else torch.empty(shape, dtype=dtype, device="cpu")
        flat = _bytes_of(whole)
        place = first = ends[number] - sizes[number]
        while place < ends[number]:
            if place == end:
                begin, end = end, min(end + PIECE_BYTES, ends[-1])
                data = _piece(flats, ends, begin, end) if own else data.new_empty(end - begin)
                _transfer(group, source, to, data)
            stop = min(ends[number], end)
            if receives:
                flat[place - first : stop - first] = data[place - begin : stop - begin]
            place = stop
        yield whole


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _piece(flats: Sequence[Tensor], ends: Sequence[int], begin: int, end: int) -> Tensor:
    """Bytes begin:end of tensors one behind the other, in host memory."""
    found = []
    for number in range(bisect_right(ends, begin), len(flats)):
        first = ends[number] - len(flats[number])
        if first >= end:
            break
        found.append(flats[number][max(begin - first, 0) : end - first].cpu())
    return torch.cat(found)


def _transfer(group: Any, source: int, to: int | None, data: Tensor) -> None:
    if to is None:
        options = dist.BroadcastOptions()
        options.rootRank = source
        group.broadcast([data], options).wait()
    elif source == group.rank():
        group.send([data], to, 0).wait()
    else:
        group.recv([data], source, 0).wait()


def _unknown_state(name: str, kind: str) -> NotSupported:
    return NotSupported(
        f"the optimizer's state {name!r} is a {kind}, which no rank can send to another.",
        thing=f"optimizer.state, {name}",
        value=(name, kind),
        remedy="Keep tensors, numbers and text, or lists and dictionaries of these in the "
        "optimizer's state.",
    )
