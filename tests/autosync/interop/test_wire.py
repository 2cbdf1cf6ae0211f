"""The wire format: as the protobuf library reads and writes it, and damaged."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.errors import InvalidInput
from autosync.interop.autodist_messages import (
    AttrValue,
    GraphDef,
    NodeConfig,
    PSSynchronizer,
    StrategyMessage,
)
from autosync.interop.protobuf_records import decode, encode
from autosync.interop.protobuf_wire import Window, Wire, read_fields, tagged, varint
from tests.autosync.interop.protos import P, parsed

texts = st.text(max_size=12)
numbers = st.integers(-(2**31), 2**31 - 1)


def read(data: bytes, max_values: int = 1000) -> StrategyMessage:
    return decode(StrategyMessage, Window.of(data, "file"), max_values)


@given(texts, st.booleans(), numbers)
def test_values_as_the_library_writes_them(name: str, flag: bool, number: int) -> None:
    theirs = P["PSSynchronizer"](
        reduction_destination=name, local_replication=flag, staleness=number
    ).SerializeToString()
    ours = PSSynchronizer(name, flag, False, number)
    assert decode(PSSynchronizer, Window.of(theirs), 10) == ours
    assert encode(ours) == theirs


@given(st.dictionaries(texts, st.integers(0, 30), max_size=4))
def test_maps_as_the_library_writes_them(types: dict[str, int]) -> None:
    theirs = P["GraphDef"](version=7)
    node = theirs.node.add(name="n", op="o", input=["a", "^b"])
    for key, number in types.items():
        node.attr.add(key=key).value.type = number
    (ours,) = decode(GraphDef, Window.of(theirs.SerializeToString()), 1000).node
    read_types = {key: decode(AttrValue, value, 10).type for key, value in ours.attr.items()}
    assert read_types == types
    assert ours.input == ("a", "^b")
    again = parsed("NodeDef", encode(ours))
    assert {each.key: each.value.type for each in again.attr} == types


@pytest.mark.parametrize(
    ("data", "offset", "why"),
    [
        (b"\x0a\x05abc", 2, "claims 5 bytes, but 3 are left"),
        (b"\x0a\x02ok\x0a", 5, "ends in the middle"),
        (b"\x0a" + b"\xff" * 11, 1, "longer than 64 bits"),
        (b"\x0a\x02\xc3\x28", 2, "not UTF-8"),
        (b"\x08\x01", 0, "bytes are due, not VARINT"),
        (b"\x0b\x0c", 0, "wire type 3 is not in use"),
        (b"\x02\x00", 0, "a field has the number 0"),
        (b"\x32\x00", 0, "has no field 6"),
        (b"\x0a\x01a\x0a\x01b", 3, "StrategyMessage.id: it is given twice"),
        (b"\x1a\x04\x12\x02\x10\x80", 5, "ends in the middle"),
    ],
)
def test_damage_is_told_by_offset(data: bytes, offset: int, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"file, byte {offset}, .*{why}"):
        read(data)


def test_depth_is_bounded() -> None:
    data = b""
    for _ in range(20):
        data = tagged(5, Wire.LENGTH, data)
    with pytest.raises(InvalidInput, match="nested more than 12 levels"):
        decode(NodeConfig, Window.of(data), 1000)


def test_the_number_of_values_is_bounded() -> None:
    with pytest.raises(InvalidInput, match="more than 1000 values"):
        read(b"\x1a\x00" * 201)  # each counts for five
    assert len(read(b"\x1a\x00" * 200).node_config) == 200


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    for cls in (StrategyMessage, GraphDef):
        with suppress(InvalidInput):
            decode(cls, Window.of(data), 100)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**29 - 1))
def test_fields_come_back(value: int, number: int) -> None:
    written = tagged(number, Wire.VARINT, varint(value))
    (field,) = read_fields(Window.of(written), "message")
    assert (field.number, field.value) == (number, value % 2**64)
