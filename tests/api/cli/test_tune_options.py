"""Options of `autosync tune` that steer the search reach its settings."""

from pathlib import Path
from typing import Any

import pytest

from autosync.api.cli.commands import tune as tune_command
from autosync.search.loop.settings import Settings
from tests.api.cli.command import small_inputs


class Requested(Exception):
    pass


def settings_of(monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> Settings:
    """What a tuning would be requested with; nothing is stored or run."""
    found: list[Settings] = []

    def request(domain: object, settings: Settings, *others: object) -> None:
        found.append(settings)
        raise Requested

    monkeypatch.setattr("autosync.api.cli.tuning_start.request_at_scales", request)
    monkeypatch.chdir(folder)
    model, cluster, *_ = small_inputs(folder)
    with pytest.raises(Requested):
        tune_command.tune(model, cluster, **options)
    return found[0]


def test_the_searchs_options_reach_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stated: dict[str, Any] = {
        "alpha": 1.5,
        "acquisition": "expected_improvement",
        "first_designs": 5,
        "design_share": 0.5,
        "refined_share": 0.125,
        "neighbour_share": 0.25,
        "least_gain": 0.01,
        "proposals": 7,
    }
    assert settings_of(monkeypatch, tmp_path, **stated) == Settings(**stated)
    assert settings_of(monkeypatch, tmp_path) == Settings()
