"""Bad input: what is wrong, the value, the way out; exit code 2 and no traceback."""

from pathlib import Path

import pytest
import torch
import yaml

from autosync.api.cli.error_reporting import BROKEN, guarded
from autosync.cluster_file import save_cluster
from tests.api.cli.command import autosync, small_inputs
from tests.domains import grid_cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_inputs(tmp_path)
    return tmp_path


def refusal(folder: Path, *arguments: str) -> str:
    return autosync(folder, *arguments, code=2).stderr


def test_an_unknown_model_brings_close_names(folder: Path) -> None:
    output = refusal(folder, "rank", "resnet5", "example-4x1")
    assert "resnet5" in output
    assert "Did you mean resnet50" in output


def test_an_unknown_cluster_brings_close_names(folder: Path) -> None:
    assert "example-4x1" in refusal(folder, "rank", "chain.json", "exmple-4x1")


def test_a_negative_budget_leaves_nothing_behind(folder: Path) -> None:
    output = refusal(folder, "tune", "chain.json", "pair.yaml", "--budget", "-3")
    assert "budget: Input should be greater than or equal to 1, got -3" in output
    assert "Way out" in output
    assert {path.name for path in folder.iterdir()} == {"chain.json", "pair.yaml"}


def test_what_does_not_go_with_kernels_leaves_nothing_behind(folder: Path) -> None:
    scaled = ("--compute", "kernels", "--byte-scale", "0.5", "--launcher", "local")
    output = refusal(folder, "tune", "chain.json", "pair.yaml", *scaled)
    assert "byte_scale is 0.5" in output
    assert "Way out" in output
    assert {path.name for path in folder.iterdir()} == {"chain.json", "pair.yaml"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_says_so(folder: Path) -> None:
    asked = ("--compute", "kernels", "--compute-device", "cuda", "--launcher", "local")
    output = refusal(folder, "tune", "chain.json", "pair.yaml", *asked)
    assert f"torch {torch.__version__} sees no GPU" in output
    assert "--compute-device cpu" in output


def test_garbage_where_a_graph_is_due(folder: Path) -> None:
    (folder / "garbage.json").write_text("{]")
    assert "garbage.json" in refusal(folder, "rank", "garbage.json", "pair.yaml")


def test_garbage_where_a_strategy_is_due(folder: Path) -> None:
    (folder / "garbage.json").write_bytes(b"\xff\xfe\x00")
    assert "garbage.json" in refusal(folder, "explain", "garbage.json")


def test_a_cluster_without_bandwidth_names_the_node(folder: Path) -> None:
    save_cluster(grid_cluster(2), folder / "broken.yaml")
    data = yaml.safe_load((folder / "broken.yaml").read_text())
    del data["nodes"][1]["bandwidth_gbps"]
    (folder / "broken.yaml").write_text(yaml.safe_dump(data))
    output = refusal(folder, "rank", "chain.json", "broken.yaml")
    assert "10.77.0.2" in output
    assert "bandwidth_gbps" in output


def test_a_file_that_is_not_there(folder: Path) -> None:
    assert "missing.json" in refusal(folder, "rank", "missing.json", "pair.yaml")


def test_a_folder_that_is_not_there_for_the_output(folder: Path) -> None:
    for command in (("import", "chain.json"), ("probe", "pair.yaml"), ("tune", "chain.json")):
        output = refusal(folder, *command, "-o", "nowhere/file")
        assert "cannot write 'nowhere/file'" in output
        assert "Way out" in output


def test_a_folder_in_the_place_of_the_output(folder: Path) -> None:
    assert "cannot write '.'" in refusal(folder, "import", "chain.json", "-o", ".")
    assert {path.name for path in folder.iterdir()} == {"chain.json", "pair.yaml"}


def test_an_unknown_tuning_makes_no_database(folder: Path) -> None:
    assert "autosync.db" in refusal(folder, "export", "deadbeef")
    assert not (folder / "autosync.db").exists()


def test_a_database_that_does_not_answer(folder: Path) -> None:
    output = refusal(folder, "worker", "--once", "--db", "postgresql://nobody@127.0.0.1:1/none")
    assert "the database does not answer" in output
    assert "Way out" in output


def test_a_worker_makes_no_database(folder: Path) -> None:
    assert "there is no database" in refusal(folder, "worker", "--db", "sqlite:///typo.db")
    assert not (folder / "typo.db").exists()


def test_a_database_that_cannot_be_is_no_defect(folder: Path) -> None:
    (folder / "photo.db").write_bytes(b"\x89PNG" * 1000)
    for command in (("serve", "--port", "1"), ("export", "deadbeef"), ("worker", "--once")):
        output = refusal(folder, *command, "--db", "sqlite:///photo.db")
        assert "is a file of another kind" in output
        assert "Way out" in output
    output = refusal(folder, "serve", "--port", "1", "--db", "sqlite:////sys/autosync.db")
    assert "cannot be opened" in output


def test_tune_without_a_model(folder: Path) -> None:
    assert "MODEL" in refusal(folder, "tune")


def test_a_step_time_leaves_no_efficiency_to_assume(folder: Path) -> None:
    options = ("--step-seconds", "0.1", "--efficiency", "0.4")
    assert "--efficiency" in refusal(folder, "rank", "chain.json", "pair.yaml", *options)


def test_a_defect_is_one_line_and_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    secret = ["serve", "--db", "postgresql://me:s3cret@db/a", "--token", "0p3n"]
    monkeypatch.setattr("sys.argv", ["autosync", *secret])

    def broken() -> None:
        raise ZeroDivisionError("a defect of this test")

    assert guarded(broken) == BROKEN
    (log,) = (tmp_path / "autosync").iterdir()
    assert "Traceback" in log.read_text()
    assert "a defect of this test" in log.read_text()
    assert "serve --db postgresql://me:***@db/a --token ***" in log.read_text()
    assert "Traceback" not in capsys.readouterr().err
