import json
from dataclasses import replace
from typing import Any

import pytest

from autosync.allowed import Allowed
from autosync.api.spec import TuningSpec, checked
from autosync.documents import from_json, json_schema, to_json
from autosync.errors import InvalidInput
from autosync.search.space import SPACES, Space
from autosync.strategy import AllReduce, VariableChoice, whole

PIN = VariableChoice("v0", whole((4,)), (AllReduce(0),))

BEFORE = """{"all_reduce":true,"encodings":[{"name":"none","rank":0}],"factors":true,
"hierarchical":true,"max_groups":20,"max_parts":40,"overlap_forward":true,"parameter_server":true,
"pins":[],"priority":true,"reduce_scatter":true,"slice_bytes":[0,1048576,4194304,16777216],
"uneven_shares":false,"whole_below_bytes":100000}""".replace("\n", "")
"""As stored tunings have it."""

SWITCHES = (
    *("load_balance", "adjacent_merge", "shard_methods"),
    *("idle_gathers", "sharded_parameters", "placement", "swapping"),
    *("nccl_knobs", "compiled_regions"),
)

LATER = {*SWITCHES, "staleness", "only"}


def test_a_named_space_says_everything() -> None:
    for name, space in SPACES.items():
        assert space.only == name
        assert from_json(Space, to_json(space)) == space
        spec: dict[str, Any] = {"graph": "resnet50", "cluster": "example-4x1", "space": name}
        assert checked(TuningSpec, spec).space == space
    with pytest.raises(InvalidInput, match=r"and parameter_server is True\. Give the name alone"):
        Space(only="buckets")
    with pytest.raises(InvalidInput, match="and pins is"):
        replace(SPACES["buckets"], pins=(PIN,))
    with pytest.raises(InvalidInput, match="no space has that name; those that have one are"):
        checked(TuningSpec, {"graph": "vgg16", "cluster": "example-4x1", "space": "bucket"})


def test_the_document_is_what_it_was() -> None:
    assert to_json(Space()) == BEFORE
    assert from_json(Space, BEFORE) == Space()
    assert from_json(Space, "{}") == Space()
    assert set(json_schema(Space)["properties"]) == set(json.loads(BEFORE)) | LATER


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_that_is_turned_is_in_the_document(switch: str) -> None:
    turned = made(switch, not getattr(Space(), switch))
    assert switch in json.loads(to_json(turned))
    assert from_json(Space, to_json(turned)) == turned


def made(field: str, value: Any) -> Space:
    given: dict[str, Any] = {field: value}
    return Space(**given)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("whole_below_bytes", -1, "whole_below_bytes is -1. Give 0 or more"),
        ("max_parts", 0, "max_parts is 0. Give 1 or more"),
        ("max_groups", -20, "max_groups is -20. Give 1 or more"),
        ("slice_bytes", [], "slice_bytes is empty. Give \\[0\\]"),
        ("slice_bytes", [0, -4], "slice_bytes has a slice of -4 bytes. Give sizes above 0"),
        ("slice_bytes", [2**63], "slice_bytes has a slice of 9223372036854775808 bytes"),
        ("slice_bytes", [2**62 + 1], "slice_bytes has a slice of 4611686018427387905 bytes"),
        ("staleness", [0, 300], "staleness has 300. Give 0 and what may be tried beside it"),
        ("staleness", [1, 4], "staleness lacks 0"),
        ("staleness", [], "staleness lacks 0"),
        ("encodings", [], "encodings is empty: no message could be packed. Leave it out"),
    ],
)
def test_empty_choices_are_refused_by_name(field: str, value: Any, words: str) -> None:
    given = tuple(value) if isinstance(value, list) else value
    with pytest.raises(InvalidInput, match=words) as refused:
        made(field, given)
    assert refused.value.thing.removeprefix("space.") == field
    assert refused.value.value in (given, *(value if isinstance(value, list) else ()))
    assert refused.value.remedy
    with pytest.raises(InvalidInput, match=words):
        from_json(Space, json.dumps({field: value}))


@pytest.mark.parametrize("cls", [Allowed, Space])
def test_every_synchronizer_off_is_refused(cls: type[Allowed]) -> None:
    with pytest.raises(InvalidInput, match=r"reduce_scatter are all off.*Allow one of them"):
        cls(parameter_server=False, all_reduce=False, reduce_scatter=False)
    assert cls(parameter_server=False, all_reduce=False).reduce_scatter


def test_two_pins_of_one_variable_are_refused() -> None:
    with pytest.raises(InvalidInput, match="pins has 2 for 'v0'"):
        Space(pins=(PIN, PIN))


def test_staleness_is_in_the_document_where_it_is_allowed() -> None:
    space = Space(staleness=(0, 1, 4))
    assert json.loads(to_json(space))["staleness"] == [0, 1, 4]
    assert from_json(Space, to_json(space)) == space
    assert space.may_lag
    assert not Space().may_lag


@pytest.mark.parametrize(
    "given", [{"pins": (PIN,)}, {"placement": True}, {"sharded_parameters": False}]
)
def test_a_space_of_a_name_leaves_no_choice_of_others(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="only is 'fsdp2'"):
        Space(**{"only": "fsdp2", **given})
