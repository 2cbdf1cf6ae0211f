"""Options of `autosync tune` that steer the search reach its settings."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autosync.api.cli.commands import tune as tune_command
from autosync.api.cli.options import DEFAULT_DATABASE, database_option
from autosync.api.client.service_connection import plain
from autosync.api.client.tuning_calls import TuningCalls
from autosync.api.spec import TuningSpec, checked
from autosync.cluster import Backend, Cluster
from autosync.domain import Domain
from autosync.environment import DATABASE_URL_VARIABLE, SHARE_GPUS_VARIABLE
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.search.loop.settings import Settings
from autosync.search.space import SPACES, Space
from tests.api.cli.command import small_inputs
from tests.api.test_spec import STATED


class Requested(Exception):
    pass


def specified(
    monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any
) -> tuple[Domain, TuningSpec]:
    """What a tuning would be requested with; nothing is stored or run."""
    found: list[tuple[Domain, TuningSpec]] = []

    def start(calls: TuningCalls, graph: ModelGraph, cluster: Cluster, **asked: Any) -> None:
        domain = Domain(graph, cluster, asked["profile"], asked["optimizer"])
        spec = checked(TuningSpec, {"graph": "", "cluster": "", **plain(asked)})
        found.append((domain, spec))
        raise Requested

    monkeypatch.setattr(TuningCalls, "start", start)
    monkeypatch.chdir(folder)
    model, cluster, *_ = small_inputs(folder)
    with pytest.raises(Requested):
        tune_command.tune(model, cluster, **options)
    return found[0]


def test_a_space_is_asked_for_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert specified(monkeypatch, tmp_path)[1].space == Space()
    assert specified(monkeypatch, tmp_path, space="fsdp2")[1].space == SPACES["fsdp2"]


def test_the_searchs_options_reach_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "advanced.json"
    file.write_text(json.dumps(STATED))
    for advanced in (json.dumps(STATED), str(file)):
        _, spec = specified(monkeypatch, tmp_path, proposals=7, iterations=3, advanced=advanced)
        assert spec.settings == Settings(proposals=7, iterations=3, **STATED)
    assert specified(monkeypatch, tmp_path)[1].settings == Settings()


@pytest.mark.parametrize(
    ("advanced", "words"),
    [("{", "cannot be read"), ("nowhere.json", "cannot be read"), ('{"luck": 1}', "luck")],
)
def test_an_advanced_document_that_is_none_is_refused(advanced: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        tune_command.tune("resnet50", "example-4x1", advanced=advanced)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_backend_may_be_named_in_place_of_the_clusters(
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert specified(monkeypatch, tmp_path)[0].cluster.backend == "gloo"
    capsys.readouterr()
    assert specified(monkeypatch, tmp_path, backend=backend)[0].cluster.backend == backend
    told = " ".join(capsys.readouterr().err.split())
    warned = "autosync.tune measures strategies in the job" in told
    assert warned == (backend == "nccl")


def test_ranks_of_a_tuning_may_share_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SHARE_GPUS_VARIABLE, "")
    specified(monkeypatch, tmp_path)
    assert not os.environ[SHARE_GPUS_VARIABLE]
    specified(monkeypatch, tmp_path, share_gpus=True)
    assert os.environ[SHARE_GPUS_VARIABLE] == "1"


def test_batches_of_an_update_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert specified(monkeypatch, tmp_path)[1].accumulate == 1
    assert specified(monkeypatch, tmp_path, accumulate=4)[1].accumulate == 4


def test_what_a_resumed_tuning_needs_again() -> None:
    """The database knows neither; best.json is usual."""
    typed: dict[str, str | bool] = {"--prefix": "ssh {host}", "--share-gpus": True}
    assert tune_command.given_again(Path("best.json"), {}) == ""
    words = tune_command.given_again(Path("mine.json"), typed)
    assert words == " -o mine.json --prefix 'ssh {host}' --share-gpus"


def test_a_database_is_named_where_a_further_command_would_take_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A printed URL has no password: as typed it would not open the database again."""
    own, service = "sqlite:///my tunings.db", "postgresql://me:s3cret@db/autosync"
    monkeypatch.delenv(DATABASE_URL_VARIABLE, raising=False)
    assert database_option(DEFAULT_DATABASE) == ""
    assert database_option(own) == f" --db '{own}'"
    assert database_option(service) == " --db 'postgresql://me:***@db/autosync'"
    monkeypatch.setenv(DATABASE_URL_VARIABLE, service)
    assert database_option(service) == ""
    assert database_option(DEFAULT_DATABASE) == f" --db {DEFAULT_DATABASE}"
