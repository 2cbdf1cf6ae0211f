"""What a client states of the search reaches its settings."""

from dataclasses import fields

import pytest
from pydantic import ValidationError

from autosync.api.http.tuning_body import TuningBody
from autosync.documents import to_data
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
