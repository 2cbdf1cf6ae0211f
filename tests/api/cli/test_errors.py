"""Bad input: what is wrong, the value, the way out; exit code 2 and no traceback."""

from pathlib import Path

import pytest
import torch

from autosync.api.cli.error_reporting import BROKEN, REFUSED, guarded
from autosync.errors import AutosyncError
from tests.api.cli.command import autosync, small_inputs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_inputs(tmp_path)
    return tmp_path


def refusal(folder: Path, *arguments: str) -> str:
    return autosync(folder, *arguments, code=2).stderr


BROKEN_FILES = {
    "garbage.json": b"{]",
    "bytes.json": b"\xff\xfe\x00",
    "broken.yaml": b"name: broken\nnodes: [{address: 10.77.0.2, devices: [{type: cpu}]}]\n",
}
TUNED = ("tune", "chain.json", "pair.yaml")
RANKED = ("rank", "chain.json", "pair.yaml")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("rank", "resnet5", "example-4x1"), ("resnet5", "Did you mean resnet50")),
        (("rank", "chain.json", "exmple-4x1"), ("example-4x1",)),
        (("rank", "garbage.json", "pair.yaml"), ("garbage.json",)),
        (
            ("tune", "chain.json", "pair.yaml", "--url", "http://127.0.0.1:9", "--prefix", "ssh"),
            ("--prefix is for the workers of this machine", "leave --url out"),
        ),
        (("explain", "bytes.json"), ("bytes.json",)),
        (("rank", "chain.json", "broken.yaml"), ("10.77.0.2", "bandwidth_gbps")),
        (("rank", "missing.json", "pair.yaml"), ("missing.json",)),
        ((*RANKED, "--step-seconds", "0.1", "--efficiency", "0.4"), ("efficiency are both given",)),
        (
            ("profile", "chain.json", "--trace", "garbage.json", "--step-seconds", "0.1"),
            ("--step-seconds has no effect beside --trace",),
        ),
        (
            ("profile", "chain.json", "--trace", "garbage.json", "--iterations", "9"),
            ("--iterations has no effect beside --trace",),
        ),
        (
            ("profile", "chain.json", "--device", "v100", "--iterations", "9"),
            ("--iterations has no effect on an estimate",),
        ),
        (
            (*RANKED, "--profile", "measured.json", "--device", "v100"),
            ("--device has no effect beside --profile",),
        ),
        (
            (*TUNED, "--compute", "kernels", "--device", "v100", "--launcher", "local"),
            ("--device has no effect on kernels",),
        ),
        (("tune",), ("MODEL",)),
        ((*TUNED, "--launcher", "command"), ("'command' is not set up here", "--prefix")),
        (
            (*TUNED, "--budget", "-3"),
            ("budget: Input should be greater", "got -3"),
        ),
        (
            (*TUNED, "--compute", "kernels", "--byte-scale", "1/2", "--launcher", "local"),
            ("byte_scale is 0.5",),
        ),
        (
            ("import", "chain.json", "--length", "64"),
            ("--length has no effect on 'chain.json'", "Leave it out"),
        ),
        (("import", "bert_3l", "--length", "64"), ("--length has no effect on 'bert_3l'",)),
        (("import", "chain.json", "-o", "."), ("cannot write '.'",)),
        (("import", "chain.json", "-o", "nowhere/file"), ("cannot write 'nowhere/file'",)),
        (("probe", "pair.yaml", "-o", "nowhere/file"), ("cannot write 'nowhere/file'",)),
        (
            ("probe", "aws-p5-48xlarge-x4", "-o", "probed.yaml"),
            ("is on NCCL", "by gloo", "autosync cluster calibrate"),
        ),
        (
            ("probe", "example-4x1", "-o", "probed.yaml", "--byte-scale", "0"),
            ("byte_scale is 0.0",),
        ),
        ((*TUNED, "-o", "nowhere/file"), ("cannot write 'nowhere/file'",)),
        (("export", "deadbeef"), ("autosync.db",)),
        (("export", "garbage.json", "--for", "ddp"), ("'garbage.json' is a file", "--from")),
        (("worker", "--db", "sqlite:///typo.db"), ("there is no database",)),
        (("worker", "--url", "http://127.0.0.1:9", "--keep-days", "3"), ("removes nothing",)),
        (("worker", "--url", "tuner.example.com"), ("is no address of a service",)),
        (
            ("worker", "--url", "http://127.0.0.1:9", "--launcher", "ray"),
            ("'ray' is not set up here", "--ray-address"),
        ),
    ],
)
def test_what_is_refused_says_what_is_wrong_and_the_way_out_and_leaves_nothing_behind(
    folder: Path, command: tuple[str, ...], words: tuple[str, ...]
) -> None:
    for name, content in BROKEN_FILES.items():
        (folder / name).write_bytes(content)
    before = {path.name for path in folder.iterdir()}
    output = refusal(folder, *command)
    assert all(each in output for each in (*words, "Way out"))
    assert {path.name for path in folder.iterdir()} == before


def test_no_command_takes_a_batch_of_nothing_for_the_usual_one(folder: Path) -> None:
    for command in (("profile", "bert_3l"), ("rank", "bert_3l", "pair.yaml")):
        assert "Invalid value" in refusal(folder, *command, "--batch", "0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_says_so(folder: Path) -> None:
    asked = ("--compute", "kernels", "--compute-device", "cuda", "--launcher", "local")
    output = refusal(folder, "tune", "chain.json", "pair.yaml", *asked)
    assert f"torch {torch.__version__} sees no GPU" in output
    assert "--compute-device cpu" in output


def test_a_database_that_does_not_answer(folder: Path) -> None:
    output = refusal(folder, "worker", "--once", "--db", "postgresql://nobody@127.0.0.1:1/none")
    assert "the database does not answer" in output
    assert "Way out" in output


def test_a_database_that_cannot_be_is_no_defect(folder: Path) -> None:
    (folder / "photo.db").write_bytes(b"\x89PNG" * 1000)
    for command in (("serve", "--port", "1"), ("export", "deadbeef"), ("worker", "--once")):
        output = refusal(folder, *command, "--db", "sqlite:///photo.db")
        assert "is a file of another kind" in output
        assert "Way out" in output
    output = refusal(folder, "serve", "--port", "1", "--db", "sqlite:////sys/autosync.db")
    assert "cannot be opened" in output


def test_a_value_is_printed_beside_its_thing(capsys: pytest.CaptureFixture[str]) -> None:
    """Not as what the user gave: the command may have made it."""
    tuning_id = "3f2a90c1" * 4

    def failed() -> None:
        raise AutosyncError("tuning 3f2a90c1 failed: no host.", thing="tuning", value=tuning_id)

    assert guarded(failed) == REFUSED
    said = capsys.readouterr().err
    assert f"tuning: {tuning_id}" in said
    assert "given" not in said


def test_what_a_file_says_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A name may hold what clears the screen."""

    def failed() -> None:
        raise AutosyncError("node 'a\x1b[2J\x9b1m' has no device.")

    assert guarded(failed) == REFUSED
    assert r"node 'a\x1b[2J\x9b1m' has no device." in capsys.readouterr().err


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
