"""Protobuf messages as frozen dataclasses: a field's annotation says its number, its type the rest.

    @dataclass(frozen=True, slots=True)
    class GraphConfig:
        replicas: Annotated[tuple[str, ...], 1] = ()

str, bool and int are themselves, Window is bytes, a dataclass (| None) is a message, a tuple is a
repeated field (of numbers packed or not), a Mapping from str a map. As in proto3, a field that is
absent has its default, and defaults are not written. A class with OPEN = True skips fields that it
does not declare; any other refuses them, since an unknown field of a strategy could change its
meaning.
"""

import types
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from autosync.errors import InvalidInput
from autosync.interop.protobuf_wire import (
    Field,
    Window,
    Wire,
    read_fields,
    read_varints,
    signed,
    tagged,
    varint,
)

MAX_DEPTH = 12
"""Messages within messages; the deepest honest ones here are seven deep."""

MESSAGE_VALUES = 4
"""What a message counts for beside its own values: an empty one is 2 bytes on the wire, but
takes the memory and the time of four numbers."""

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Slot:
    """What a dataclass field is on the wire: `of` is the type of one value, `where` names it,
    `values` is what one of it counts for."""

    name: str
    where: str
    of: type[Any]
    repeated: bool = False
    mapped: bool = False
    values: int = 1


_SLOTS: dict[type[Any], dict[int, Slot]] = {}


def _slots(cls: type[Any]) -> dict[int, Slot]:
    """The fields of a message class by number; resolved once."""
    if cls not in _SLOTS:
        hints = get_type_hints(cls, include_extras=True).items()
        declared = [
            (name, *get_args(hint)) for name, hint in hints if get_origin(hint) is Annotated
        ]
        _SLOTS[cls] = {
            number: _slot(name, f"{cls.__name__}.{name}", hint) for name, hint, number in declared
        }
    return _SLOTS[cls]


def _slot(name: str, where: str, hint: Any) -> Slot:
    origin, inner = get_origin(hint), get_args(hint)
    mapped = origin is Mapping
    of = inner[mapped] if origin in (tuple, Mapping, types.UnionType) else hint
    values = 1 + MESSAGE_VALUES * is_dataclass(of)
    return Slot(name, where, of, origin is tuple, mapped, values)


class ValueBudget:
    """How many more values may be read, of one message or of several."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most

    def spend(self, window: Window, offset: int, values: int = 1) -> None:
        self.left -= values
        if self.left < 0:
            raise window.refused(offset, "message", f"it holds more than {self.most} values")


def decode(cls: type[M], window: Window, max_values: int | ValueBudget) -> M:
    """The message in the window, of at most `max_values` values (`MESSAGE_VALUES` more for each
    message in it).

    Raises:
        InvalidInput: names source, byte offset, message and field.
    """
    budget = ValueBudget(max_values) if isinstance(max_values, int) else max_values
    return cast(M, _read(cls, window, budget, 1))


def encode(record: object) -> bytes:
    """The record's fields in the order of their numbers."""
    written = bytearray()
    for number, slot in sorted(_slots(type(record)).items()):
        value = getattr(record, slot.name)
        if slot.mapped:
            for key, item in value.items():
                entry = tagged(1, Wire.LENGTH, key.encode()) + _written(2, item)
                written += tagged(number, Wire.LENGTH, entry)
        elif slot.repeated:
            written += b"".join(_written(number, item) for item in value)
        elif value is not None and (is_dataclass(value) or value):
            written += _written(number, value)
    return bytes(written)


def _written(number: int, value: Any) -> bytes:
    match value:
        case str():
            return tagged(number, Wire.LENGTH, value.encode())
        case int():
            return tagged(number, Wire.VARINT, varint(value))
        case Window():
            return tagged(number, Wire.LENGTH, value.cut())
        case _:
            return tagged(number, Wire.LENGTH, encode(value))


def _read(cls: type[Any], window: Window, budget: ValueBudget, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise window.refused(
            window.begin, cls.__name__, f"messages are nested more than {MAX_DEPTH} levels deep"
        )
    slots = _slots(cls)
    is_open = getattr(cls, "OPEN", False)
    found: dict[str, Any] = {}
    for item in read_fields(window, cls.__name__):
        slot = slots.get(item.number)
        if slot is None:
            if is_open:
                budget.spend(window, item.offset)
                continue
            raise window.refused(item.offset, cls.__name__, f"it has no field {item.number}")
        budget.spend(window, item.offset, slot.values)
        where = slot.where
        if slot.mapped:
            key, value = _entry(slot, item, window, where, budget, depth)
            found.setdefault(slot.name, {})[key] = value
            continue
        if slot.repeated and slot.of is int and isinstance(item.value, Window):
            numbers = found.setdefault(slot.name, [])
            for number in read_varints(item.value, where):
                budget.spend(item.value, item.offset)
                numbers.append(signed(number))
            continue
        value = _value(slot.of, item, window, where, budget, depth)
        if slot.repeated:
            found.setdefault(slot.name, []).append(value)
        elif slot.name in found and not is_open:
            raise window.refused(item.offset, where, "it is given twice")
        else:
            found[slot.name] = value
    return cls(**{n: tuple(v) if isinstance(v, list) else v for n, v in found.items()})


def _entry(
    slot: Slot, item: Field, window: Window, where: str, budget: ValueBudget, depth: int
) -> tuple[str, Any]:
    """A map's entry is a message of a key (1) and a value (2)."""
    key, value = "", Window.of(b"") if slot.of is Window else slot.of()
    for part in read_fields(_bytes(item, window, where), where):
        budget.spend(window, part.offset)
        if part.number == 1:
            key = _value(str, part, window, where, budget, depth)
        elif part.number == 2:
            value = _value(slot.of, part, window, where, budget, depth)
    return key, value


def _value(
    of: type[Any], item: Field, window: Window, where: str, budget: ValueBudget, depth: int
) -> Any:
    if of is bool:
        return _number(item, window, where) != 0
    if of is int:
        return signed(_number(item, window, where))
    inner = _bytes(item, window, where)
    if of is str:
        return _text(inner, where)
    return inner if of is Window else _read(of, inner, budget, depth + 1)


def _text(inner: Window, where: str) -> str:
    try:
        return inner.cut().decode()
    except UnicodeDecodeError as error:
        raise inner.refused(inner.begin + error.start, where, "it is not UTF-8 text") from None


def _number(item: Field, window: Window, where: str) -> int:
    if item.wire != Wire.VARINT or not isinstance(item.value, int):
        raise _other_wire(item, window, where, "a number is")
    return item.value


def _bytes(item: Field, window: Window, where: str) -> Window:
    if not isinstance(item.value, Window):
        raise _other_wire(item, window, where, "bytes are")
    return item.value


def _other_wire(item: Field, window: Window, where: str, due: str) -> InvalidInput:
    return window.refused(item.offset, where, f"{due} due, not {Wire(item.wire).name}")
