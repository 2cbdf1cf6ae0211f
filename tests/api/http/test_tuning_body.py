"""What a client states of the search reaches its settings."""

from dataclasses import fields

import pytest
from pydantic import ValidationError

from autosync.api.http.prediction_bodies import RankBody
from autosync.api.http.tuning_body import TuningBody, TuningForm
from autosync.documents import to_data
from autosync.domain import Optimizer, optimizer_named
from autosync.search.loop.settings import Settings
from autosync.search.space import Space

STATED = {
    "alpha": 1.5,
    "acquisition": "expected_improvement",
    "first_designs": 5,
    "design_share": 0.5,
    "refined_share": 0.125,
    "neighbour_share": 0.25,
    "least_gain": 0.01,
    "proposals": 7,
}


def test_every_field_of_the_settings_is_passed_on() -> None:
    body = TuningBody.model_validate({"graph": "g", "cluster": "c", **STATED})
    for name, value in STATED.items():
        assert getattr(body.settings, name) == value
    named = {field.name for field in fields(Settings)}
    assert named - set(TuningBody.model_fields) == {"timeout_seconds"}


def test_the_defaults_are_those_of_the_settings() -> None:
    assert TuningBody(graph="g", cluster="c").settings == Settings()


def test_placements_are_allowed_by_the_space() -> None:
    body = TuningBody.model_validate({"graph": "g", "cluster": "c", "space": {"placement": True}})
    assert body.space.placement
    assert not TuningBody(graph="g", cluster="c").space.placement
    assert "placement" not in to_data(Space())
    assert to_data(body.space)["placement"] is True


@pytest.mark.parametrize("wrong", [{"alpha": -1}, {"acquisition": "luck"}, {"least_gain": 2}])
def test_what_no_search_can_mean_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TuningBody.model_validate({"graph": "g", "cluster": "c", **wrong})


@pytest.mark.parametrize("body", [TuningBody, RankBody])
def test_an_optimizer_is_named_or_described(body: type[TuningBody] | type[RankBody]) -> None:
    def given(optimizer: object) -> Optimizer | None:
        return body.model_validate({"graph": "g", "cluster": "c", "optimizer": optimizer}).optimizer

    assert body(graph="g", cluster="c").optimizer is None
    assert given("adamw") == optimizer_named("adamw") == Optimizer("adamw", True, 2)
    assert given("adafactor") == Optimizer("adafactor", False, 0)
    assert given({"name": "adam", "state_tensors": 3}) == Optimizer("adam", True, 3)
    with pytest.raises(ValidationError, match=r"no.* an optimizer 'lamb'.*adamw"):
        given("lamb")
    schema = body.model_json_schema()["properties"]["optimizer"]
    names = [option["enum"] for option in schema["anyOf"] if "enum" in option]
    assert len(names) == 1
    assert "adamw" in names[0]


def test_the_form_names_an_optimizer() -> None:
    form = {"graph": "g", "cluster": "c"}
    assert TuningForm(**form).body().optimizer is None
    assert TuningForm(**form, optimizer="rmsprop").body().optimizer == optimizer_named("rmsprop")
