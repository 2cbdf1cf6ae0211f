"""`autosync predict`: published methods, fitted constants, and what it says about them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.cluster import Device
from autosync.cluster.cluster_file import save_cluster
from tests.api.cli.command import autosync, small_inputs
from tests.domains import grid_cluster

SERVERS = ("rtx-2080-ti-2x4-10gbe-servers",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("predict")
    small_inputs(made)
    return made


def predicted(folder: Path, *options: str) -> list[dict[str, Any]]:
    done = autosync(folder, "predict", "resnet50", *options, "--json")
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def test_published_methods_with_the_constants_of_their_cluster(folder: Path) -> None:
    names = ("BSP-PS", "wfbp-ps", "ddp")
    asked = [word for name in names for word in ("--strategy", name)]
    step = ("--step-seconds", "0.13")
    answers = predicted(folder, *SERVERS, *asked, *step)
    assert [each["strategy"] for each in answers] == list(names)
    for each in answers:
        assert each["constants"] == "rtx-2080-ti"
        assert each["samples_per_second"] == pytest.approx(32 * 8 / each["predicted_seconds"])
        assert each["limit_seconds"] >= 0.13
        assert each["low_seconds"] < each["predicted_seconds"] < each["high_seconds"]
        assert each["warnings"] == []
        shown = 100 * each["limit_seconds"] / each["predicted_seconds"]
        assert each["percent_of_limit"] == pytest.approx(shown)
        assert each["percent_of_limit"] <= 100.01
    after_backward, overlapped, _ = (each["predicted_seconds"] for each in answers)
    assert after_backward > overlapped


def test_what_was_measured_where_is_said(folder: Path) -> None:
    options = ("resnet50", *SERVERS, "--strategy", "ddp")
    done = autosync(folder, "predict", *options)
    assert "arXiv 2005.13247" in done.stderr
    assert "of the limit" in done.stdout
    assert "between" in done.stdout
    assert "compute is an estimate" in done.stderr
    plain = autosync(folder, "predict", *options, "--constants", "none")
    assert "no constants were fitted" in plain.stderr.replace("\n", " ")


def test_an_engine_can_be_chosen_or_left_out(folder: Path) -> None:
    method = ("rtx-2080-ti-1x4", "--strategy", "ByteScheduler-A2A")
    (slow,) = predicted(folder, *method)
    (swift,) = predicted(folder, *method, "--engine", "none")
    assert slow["predicted_seconds"] > swift["predicted_seconds"]
    assert slow["engine_seconds"] > swift["engine_seconds"] == 0


def test_unknown_names_are_refused_with_a_way_out(folder: Path) -> None:
    model = ("chain.json",)
    pair = (*model, "pair.yaml")
    for options, words in (
        ((*pair, "--strategy", "MG-WFPB"), "MG-WFBP"),
        ((*pair, "--strategy", "BSP-PS"), "server_only"),
        ((*pair, "--strategy", "ByteScheduler-A2A"), "--constants"),
        ((*pair, "--strategy", "ddp", "--engine", "horovod"), "horovod"),
        ((*pair, "--strategy", "ddp", "--constants", "rtx-3080"), "rtx-2080-ti"),
        ((*model, "rtx-2080-ti-9x4"), "rtx-2080-ti"),
    ):
        refused = autosync(folder, "predict", *options, code=2)
        assert words in refused.stderr, options


def test_what_does_not_fit_is_said(folder: Path) -> None:
    cluster = grid_cluster(2)
    nodes = tuple(replace(node, devices=(Device("cpu", memory_gb=0.15),)) for node in cluster.nodes)
    save_cluster(replace(cluster, nodes=nodes), folder / "tight.yaml")
    options = ("tight.yaml", "--step-seconds", "0.13")
    asked = ("--strategy", "ddp", "--strategy", "fsdp2", "--batch", "1")
    ddp, sharded = predicted(folder, *options, *asked)
    assert ddp["predicted_peak_bytes"] > 0.15e9
    assert not ddp["fits"]
    assert sharded["predicted_peak_bytes"] < ddp["predicted_peak_bytes"]
    said = autosync(folder, "predict", "resnet50", *options, *asked).stdout
    assert "GB a rank" in said.replace("\n", " ")
    (roomy,) = predicted(folder, "pair.yaml", *options[1:], "--strategy", "ddp", "--batch", "1")
    assert roomy["fits"]
