"""Changes of valid inputs that know their form, so that most get past the first check."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.internal import encoder
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

Change = Callable[[bytes, random.Random], bytes]

NUMBERS = (0, 1, -1, 2, 7, 63, 64, 255, 256, 1023, 65_535, 65_536, 2**31 - 1, 2**31, 2**32)
LARGE = (2**53, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63), 10**400)
FLOATS = (0.5, -0.0, 1e-320, 1e-300, 1e300, 1.5e308, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    " ",
    "\x00",
    "\ud800",
    "é",
    "a" * 300,
    "../../etc/passwd",
    "NaN",
    "1e999",
    "-",
    "\u202e",
)
SIGNS = ("*a", "&a", "!!python/object:os.system", *"[{]}:-#|", "1:30:00")
DEEPEST = 1200
MOST_BYTES = 200_000
"""What a change makes is cut to this size."""


def changed(form: str, seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """One of the seeds, changed once to four times."""
    data = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        of_form = rng.random() < 0.85
        change = FORMS[form] if of_form else rng.choice((change_bytes, splice))
        data = splice(data, rng, seeds) if change is splice else change(data, rng)
    return data[:MOST_BYTES]


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flipped, cut out, inserted, repeated or at an end."""
    begin, stop = sorted(rng.randint(0, len(data)) for _ in range(2))
    stop = min(stop, begin + rng.choice((1, 4, 64)))
    match rng.randrange(6):
        case 0:
            return data[:begin]
        case 1:
            return data[:begin] + data[stop:]
        case 2:
            return data[:begin] + rng.randbytes(stop - begin) + data[stop:]
        case 3:
            return data[:begin] + data[begin:stop] * rng.choice((2, 3, 100)) + data[stop:]
        case 4:
            odd = rng.choice((b"\x00", b"\xff", b"\xff" * 9 + b"\x01", b"\x80", b"9" * 5000))
            return data[:begin] + odd + data[begin:]
    flipped = bytearray(data or b"\x00")
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def splice(data: bytes, rng: random.Random, seeds: Sequence[bytes] = ()) -> bytes:
    """The beginning of one and the end of another."""
    other = rng.choice(seeds) if seeds else data
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def change_lines(data: bytes, rng: random.Random) -> bytes:
    """Lines moved, doubled and dropped; words and signs replaced."""
    lines = data.decode("utf-8", "replace").splitlines(keepends=True) or [""]
    at = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        case 2:
            lines[at] *= rng.choice((2, 50))
        case 3:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            words = lines[at].split(" ")
            words[rng.randrange(len(words))] = _odd_word(rng)
            lines[at] = " ".join(words)
    return "".join(lines).encode("utf-8", "surrogatepass")


def _odd_word(rng: random.Random) -> str:
    odd = rng.choice((*NUMBERS, *LARGE, *FLOATS, *TEXTS, *SIGNS, "[" * DEEPEST))
    return str(odd) if not isinstance(odd, int) or abs(odd) < 10**300 else "9" * 400


def change_json(data: bytes, rng: random.Random) -> bytes:
    """One value somewhere in the document becomes another, goes, or comes twice."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return change_bytes(data, rng)
    text = json.dumps(_changed_value(document, rng))
    return text.encode("utf-8", "surrogatepass")


def _changed_value(value: Any, rng: random.Random) -> Any:
    """Goes down at random until it changes something."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return _other_value(value, rng)
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    if rng.random() < 0.8:
        value[key] = _changed_value(value[key], rng)
        return value
    match rng.randrange(4), value:
        case 0, _:
            del value[key]
        case 1, dict():
            value[rng.choice((*TEXTS, "name", "version", "nodes"))] = value[rng.choice(keys)]
        case 1, list():
            value.insert(key, value[rng.choice(keys)])
        case 2, list():
            value *= rng.choice((2, 3, 20))
        case _:
            value[key] = value[rng.choice(keys)]
    return value


def _other_value(value: Any, rng: random.Random) -> Any:
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 10)) if rng.random() < 0.7 else -value
    if isinstance(value, str) and rng.random() < 0.4:
        cut = rng.randint(0, len(value))
        return value[:cut] + rng.choice(TEXTS) + value[cut:]
    match rng.randrange(7):
        case 0:
            return rng.choice(NUMBERS)
        case 1:
            return rng.choice(LARGE)
        case 2:
            return rng.choice(FLOATS)
        case 3:
            return rng.choice(TEXTS)
        case 4:
            return rng.choice((None, True, False, [], {}, [value], {"name": value}))
        case 5:
            return [value] * rng.choice((0, 1, 3, 70, 300))
    nested: Any = value
    for _ in range(rng.choice((2, 20, 200))):
        nested = [nested]
    return nested


def change_protobuf(data: bytes, rng: random.Random) -> bytes:
    """One field of some message becomes another, goes, comes twice, or has another number."""
    try:
        message = Empty.FromString(data)
    except DecodeError:
        return change_bytes(data, rng)
    fields = [(f.field_number, f.wire_type, f.data) for f in UnknownFieldSet(message)]
    if not fields:
        return _field(rng.randint(1, 16), LENGTH, rng.randbytes(rng.randint(0, 3)))
    if any(wire not in (VARINT, FIXED64, LENGTH, FIXED32) for _, wire, _ in fields):
        return change_bytes(data, rng)
    at = rng.randrange(len(fields))
    written = [_field(*field) for field in fields]
    number, wire, value = fields[at]
    match rng.randrange(10):
        case 0:
            del written[at]
        case 1:
            written.insert(rng.randint(0, len(written)), written[at])
        case 2:
            written[at] *= rng.choice((2, 10, 300))
        case 3:
            written[at] = _field(rng.choice((0, number + 1, 16, 2**29 - 1)), wire, value)
        case 4:
            odd = rng.choice((*NUMBERS, *LARGE[:6]))
            written[at] = _field(number, VARINT, odd)
        case 5 if wire == LENGTH:
            length = rng.choice(NUMBERS) & 2**40
            written[at] = encoder.TagBytes(number, LENGTH) + _varint(length) + value
        case _ if wire == LENGTH:
            change = change_protobuf if rng.random() < 0.8 else change_bytes
            written[at] = _field(number, LENGTH, change(value, rng))
        case _:
            written[at] = written[at][:-1]
    return b"".join(written)


VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf (https://protobuf.dev/programming-guides/encoding)."""


def _field(number: int, wire: int, value: Any) -> bytes:
    tag: bytes = encoder.TagBytes(number, wire)
    if wire == LENGTH:
        return tag + _varint(len(value)) + bytes(value)
    if wire == VARINT:
        return tag + _varint(value)
    return tag + int(value).to_bytes(8 if wire == FIXED64 else 4, "little")


def _varint(value: int) -> bytes:
    written: bytes = encoder._VarintBytes(value & (1 << 64) - 1)
    return written


def change_safetensors(data: bytes, rng: random.Random) -> bytes:
    """The header (a length, then JSON) or the numbers behind it."""
    size = int.from_bytes(data[:8], "little")
    if rng.random() < 0.3 or size > len(data):
        return change_bytes(data, rng)
    header, rest = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.8:
        header = change_json(header, rng)
    else:
        rest = change_bytes(rest, rng)
    length = len(header) if rng.random() < 0.9 else rng.choice((0, size + 1, 2**31, 2**63 - 1))
    return length.to_bytes(8, "little") + header + rest


FORMS: dict[str, Change] = {
    "bytes": change_bytes,
    "json": change_json,
    "lines": change_lines,
    "protobuf": change_protobuf,
    "safetensors": change_safetensors,
}
