"""The protobuf wire format: fields of a message, read from untrusted bytes and written.

https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from autosync.errors import InvalidInput

MAX_VARINT_BYTES = 10
MAX_FIELD_NUMBER = (1 << 29) - 1


class Wire(IntEnum):
    """How a field's value lies in the bytes. The two kinds of groups (3, 4) are obsolete."""

    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    FIXED32 = 5


@dataclass(frozen=True, slots=True)
class Window:
    """The bytes begin:end of a file; offsets count from the file's start, nested or not."""

    data: bytes
    begin: int
    end: int
    source: str = "message"

    @classmethod
    def of(cls, data: bytes, source: str = "message") -> "Window":
        return cls(data, 0, len(data), source)

    def cut(self) -> bytes:
        return self.data[self.begin : self.end]

    def refused(self, offset: int, field: str, why: str) -> InvalidInput:
        return InvalidInput(
            f"{self.source}, byte {offset}, {field}: {why}.",
            thing=f"{self.source}, {field}",
            value=f"byte {offset}",
            remedy="The file is damaged, or it is another kind of file.",
        )


class Field(NamedTuple):
    """One field as it lies in the bytes: its number, its value, and where it begins."""

    number: int
    wire: Wire
    value: "int | Window"
    offset: int


def read_fields(window: Window, message: str) -> Iterator[Field]:
    """The fields of a message, in their order.

    Raises:
        InvalidInput: the bytes are no such message; names `message` and the offset.
    """
    at = window.begin
    while at < window.end:
        begin = at
        tag, at = _varint(window, at, message)
        number, code = tag >> 3, tag & 7
        if not 1 <= number <= MAX_FIELD_NUMBER:
            raise window.refused(begin, message, f"a field has the number {number}")
        where = f"{message}, field {number}"
        value: int | Window
        match code:
            case Wire.VARINT:
                value, at = _varint(window, at, where)
            case Wire.LENGTH:
                length, at = _varint(window, at, where)
                _check_left(window, at, length, where)
                value = Window(window.data, at, at + length, window.source)
                at += length
            case Wire.FIXED64 | Wire.FIXED32:
                width = 8 if code == Wire.FIXED64 else 4
                _check_left(window, at, width, where)
                value = int.from_bytes(window.data[at : at + width], "little")
                at += width
            case _:
                raise window.refused(begin, where, f"wire type {code} is not in use")
        yield Field(number, Wire(code), value, begin)


def varint(value: int) -> bytes:
    """A whole number of 64 bits; negative ones as their two's complement."""
    rest = value & ((1 << 64) - 1)
    written = bytearray()
    while rest >= 0x80:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def tagged(number: int, wire: Wire, value: bytes) -> bytes:
    """A field: its tag, its length where it has one, its value."""
    tag = varint(number << 3 | wire)
    return tag + varint(len(value)) + value if wire is Wire.LENGTH else tag + value


def signed(value: int) -> int:
    """A varint read as a two's complement number of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def _varint(window: Window, at: int, where: str) -> tuple[int, int]:
    value = 0
    for position in range(MAX_VARINT_BYTES):
        if at + position >= window.end:
            raise window.refused(at, where, "it ends in the middle of a number")
        byte = window.data[at + position]
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + position + 1
    raise window.refused(at, where, "a number is longer than 64 bits")


def _check_left(window: Window, at: int, length: int, where: str) -> None:
    left = window.end - at
    if length > left:
        raise window.refused(at, where, f"it claims {length} bytes, but {left} are left")
