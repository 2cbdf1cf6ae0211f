"""A collection on the command line, stopped from outside."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from autosync.cluster.cluster_file import save_cluster
from tests.api.cli.command import LONGEST_SECONDS, start
from tests.domains import grid_cluster

PLAN = """
strategies: 3
domains:
  - {name: real, model: bert_3l, cluster: three.yaml, ring_over_compute: 20.0, byte_scale: 1/256}
"""
PROBING = "measuring what messages cost"


def interrupt_ignored() -> None:
    """As shells without job control start what ends in `&`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("sent", "prepare"), [(signal.SIGINT, interrupt_ignored), (signal.SIGTERM, None)]
)
def test_a_collection_stops_while_it_probes(
    tmp_path: Path, sent: signal.Signals, prepare: Callable[[], None] | None
) -> None:
    save_cluster(grid_cluster(3), tmp_path / "three.yaml")
    (tmp_path / "plan.yaml").write_text(PLAN)
    words = ("collect", "runtimes", "--plan", "plan.yaml", "--launcher", "local")
    process = start(tmp_path, *words, prepare=prepare)
    try:
        assert process.stderr is not None
        told = ""
        while PROBING not in told:
            line = process.stderr.readline()
            assert line, told
            told += line
        process.send_signal(sent)
        told += process.communicate(timeout=LONGEST_SECONDS)[1]
    except subprocess.TimeoutExpired:
        pytest.fail(f"goes on after {sent.name}: {told}")
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, told
    assert "Stopped: the same command goes on." in told
    assert "Traceback" not in told
    assert not (tmp_path / "runtimes" / "targets" / "real.json").exists()
