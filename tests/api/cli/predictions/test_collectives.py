"""`autosync collectives`, `cluster calibrate` and `scale`: what a cluster will do, or does."""

import json
from pathlib import Path
from typing import Any

import pytest

from autosync.cluster.cluster_file import load_cluster
from tests.api.cli.command import autosync, small_inputs
from tests.autosync.interop.test_nccl_tests import HEADING, NEW, ROWS

PAIR = """
name: pair
backend: nccl
transport: infiniband
nodes:
  - {address: a, devices: [{type: h100, count: 2}], nvswitch: true, nics: 2, nic_gbps: 400}
  - {address: b, devices: [{type: h100, count: 2}], nvswitch: true, nics: 2, nic_gbps: 400}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("collectives")
    small_inputs(made)
    (made / "nccl.yaml").write_text(PAIR)
    (made / "sweep.log").write_text(NEW)
    return made


def rows(folder: Path, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        autosync(folder, "collectives", *options, "--json").stdout
    )
    return found


def test_the_table_of_nccl_tests_is_predicted(folder: Path) -> None:
    found = rows(folder, "nccl.yaml", "--sizes", "1K,1M,1G")
    assert [row["size_bytes"] for row in found] == [2.0**10, 2.0**20, 2.0**30]
    for row in found:
        assert row["low_seconds"] < row["seconds"] < row["high_seconds"]
        algbw = row["size_bytes"] / row["seconds"] / 1e9
        assert row["algbw_gbytes_per_second"] == pytest.approx(algbw)
        assert row["busbw_gbytes_per_second"] == pytest.approx(algbw * 2 * 3 / 4)
        assert row["algorithm"]
        assert row["protocol"]
    shown = autosync(folder, "collectives", "nccl.yaml", "--op", "all_gather", "--nodes", "3")
    assert "busbw GB/s" in shown.stdout
    assert "all_gather of 6 ranks, 3 nodes" in shown.stdout


def test_a_forced_choice_is_predicted(folder: Path) -> None:
    options = ("nccl.yaml", "--sizes", "1G")
    forced = rows(folder, *options, "--algo", "Ring", "--proto", "LL")
    assert {(row["algorithm"], row["protocol"]) for row in forced} == {("Ring", "LL")}
    assert forced[0]["seconds"] > rows(folder, *options)[0]["seconds"]


def test_gloo_has_a_table_too(folder: Path) -> None:
    found = rows(folder, "example-4x1", "--op", "broadcast", "--sizes", "64M")
    assert found[0]["seconds"] > 3 * 2**26 / load_cluster("example-4x1").nic_bytes_per_second()[0]
    assert found[0]["algorithm"] == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("nccl.yaml", "--sizes", "1Q"), "'1Q' is no size of a message"),
        (("nccl.yaml", "--sizes", "0"), "'0' is no size of a message"),
        (("nccl.yaml", "--algo", "Magic"), "NCCL has no algorithm 'Magic'"),
        (("example-4x1", "--algo", "Ring"), "where nothing can be forced"),
        (("example-4x1", "--op", "send_recv"), "no send_recv is predicted on gloo"),
        (("example-mixed", "--nodes", "9"), "its nodes differ"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    folder: Path, options: tuple[str, ...], words: str
) -> None:
    refused = autosync(folder, "collectives", *options, code=2)
    assert words in " ".join(refused.stderr.split())
    assert "Way out:" in refused.stderr


def test_logs_become_curves_that_predictions_pass_through(folder: Path) -> None:
    calibrate = ("cluster", "calibrate", "nccl.yaml", "--nccl-tests", "sweep.log")
    done = autosync(folder, *calibrate, "-o", "mine.yaml")
    assert "all_reduce of 4 ranks on 2 nodes" in " ".join(done.stdout.split())
    mine = load_cluster(folder / "mine.yaml")
    assert mine.nccl_version == "2.21.5"
    (curve,) = mine.curves
    found = rows(folder, "mine.yaml", "--sizes", "1K,1M,1G")
    assert [row["seconds"] for row in found] == pytest.approx(curve.seconds[1:])
    again = autosync(folder, *calibrate[:2], "mine.yaml", *calibrate[3:], "-o", "again.yaml")
    assert load_cluster(folder / "again.yaml") == mine
    assert "does not count" not in again.stderr


def test_a_log_of_other_ranks_is_told(folder: Path) -> None:
    calibrate = ("cluster", "calibrate", "--nccl-tests", "sweep.log", "-o", "other.yaml")
    done = autosync(folder, *calibrate, "aws-p5-48xlarge-x4")
    assert "for which the curve does not count" in " ".join(done.stderr.split())


def test_a_log_of_nccl_is_not_taken_for_gloo(folder: Path) -> None:
    calibrate = ("cluster", "calibrate", "--nccl-tests", "sweep.log", "-o", "gloo.yaml")
    refused = autosync(folder, *calibrate, "example-4x1", code=2)
    assert "is on gloo, and nccl-tests measure NCCL" in " ".join(refused.stderr.split())
    assert not (folder / "gloo.yaml").exists()


def test_what_a_log_does_not_say_is_stated_or_asked_for(folder: Path) -> None:
    (folder / "bare.txt").write_text(HEADING + ROWS)
    calibrate = ("cluster", "calibrate", "nccl.yaml", "--nccl-tests", "bare.txt", "-o", "bare.yaml")
    refused = autosync(folder, *calibrate, code=2)
    assert "--op" in refused.stderr
    stated = ("--op", "all_reduce", "--ranks", "4", "--nodes", "2")
    autosync(folder, *calibrate, *stated)
    assert load_cluster(folder / "bare.yaml").curves[0].nodes == 2


def test_a_job_is_scaled_to_more_nodes(folder: Path) -> None:
    options = ("scale", "chain.json", "nccl.yaml", "--nodes", "4,1,2")
    found = json.loads(autosync(folder, *options, "--json").stdout)
    points = found["points"]
    assert [(point["nodes"], point["ranks"]) for point in points] == [(1, 2), (2, 4), (4, 8)]
    for point in points:
        assert point["low_seconds"] < point["step_seconds"] < point["high_seconds"]
        assert 0 < point["efficiency"] <= 1
        assert point["binding"]
        assert point["samples_per_dollar"] is None
    shown = autosync(folder, *options).stdout
    assert "efficiency" in shown
    assert "further" in shown


def test_samples_a_dollar_stand_where_prices_do(folder: Path) -> None:
    options = ("scale", "chain.json", "aws-p3-2xlarge-x4", "--nodes", "1,2", "--json")
    points = json.loads(autosync(folder, *options).stdout)["points"]
    for point in points:
        bought = point["samples_per_second"] * 3600 / (3.06 * point["nodes"])
        assert point["samples_per_dollar"] == pytest.approx(bought)
    assert points[0]["efficiency"] == 1.0  # one GPU has nothing to wait for


@pytest.mark.parametrize("nodes", ["0", "1,x", "", "99999"])
def test_numbers_of_nodes_are_checked(folder: Path, nodes: str) -> None:
    refused = autosync(folder, "scale", "chain.json", "nccl.yaml", "--nodes", nodes, code=2)
    assert "is no number of nodes" in refused.stderr
