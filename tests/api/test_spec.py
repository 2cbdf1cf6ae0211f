"""What a client states of the search reaches its settings."""

from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from autosync.api.prediction_spec import RankSpec
from autosync.api.spec import AdvancedSpec, TuningSpec, checked
from autosync.documents import to_data
from autosync.domain import Optimizer, optimizer_named
from autosync.errors import InvalidInput
from autosync.search.loop.settings import Settings
from autosync.search.space import SPACES, Space

STATED: dict[str, Any] = {
    "alpha": 1.5,
    "acquisition": "expected_improvement",
    "first_designs": 5,
    "design_share": 0.5,
    "refined_share": 0.125,
    "neighbour_share": 0.25,
    "least_gain": 0.01,
}


def test_every_field_of_the_settings_is_passed_on() -> None:
    body = TuningSpec.model_validate({"graph": "g", "cluster": "c", "advanced": STATED})
    for name, value in STATED.items():
        assert getattr(body.settings, name) == value
    named = {field.name for field in fields(Settings)}
    stated = {*TuningSpec.model_fields, *AdvancedSpec.model_fields}
    assert named - stated == {"timeout_seconds"}


def test_the_defaults_are_those_of_the_settings() -> None:
    assert TuningSpec(graph="g", cluster="c").settings == Settings()


def test_placements_are_allowed_by_the_space() -> None:
    body = TuningSpec.model_validate({"graph": "g", "cluster": "c", "space": {"placement": True}})
    assert body.space.placement
    assert not TuningSpec(graph="g", cluster="c").space.placement
    assert "placement" not in to_data(Space())
    assert to_data(body.space)["placement"] is True


def test_a_space_is_described_or_named() -> None:
    given = {"graph": "g", "cluster": "c"}
    assert checked(TuningSpec, given | {"space": "fsdp2"}).space == SPACES["fsdp2"]
    assert checked(RankSpec, given | {"space": to_data(SPACES["fsdp2"])}).space == SPACES["fsdp2"]
    with pytest.raises(InvalidInput, match="no space has that name; those that have one are fsdp2"):
        checked(TuningSpec, given | {"space": "zero9"})


@pytest.mark.parametrize("wrong", [{"alpha": -1}, {"acquisition": "luck"}, {"least_gain": 2}])
def test_what_no_search_can_mean_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TuningSpec.model_validate({"graph": "g", "cluster": "c", "advanced": wrong})


@pytest.mark.parametrize("body", [TuningSpec, RankSpec])
def test_an_optimizer_is_named_or_described(body: type[TuningSpec] | type[RankSpec]) -> None:
    def given(optimizer: object) -> Optimizer | None:
        return checked(body, {"graph": "g", "cluster": "c", "optimizer": optimizer}).optimizer

    assert body(graph="g", cluster="c").optimizer is None
    assert given("adamw") == optimizer_named("adamw") == Optimizer("adamw", True, 2)
    assert given("adafactor") == Optimizer("adafactor", False, 0)
    assert given({"name": "adam", "state_tensors": 3}) == Optimizer("adam", True, 3)
    with pytest.raises(InvalidInput, match=r"no.* an optimizer 'lamb'.*adamw"):
        given("lamb")
    schema = body.model_json_schema()["properties"]["optimizer"]
    names = [option["enum"] for option in schema["anyOf"] if "enum" in option]
    assert len(names) == 1
    assert "adamw" in names[0]


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"advanced\.alpha: .*got -1") as refused:
        checked(TuningSpec, {"graph": "g", "cluster": "c", "advanced": {"alpha": -1}})
    assert refused.value.thing == "advanced.alpha"
    assert checked(TuningSpec, {"graph": "g", "cluster": "c", "budget": "7"}).budget == 7
