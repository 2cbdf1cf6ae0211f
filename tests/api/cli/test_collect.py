"""A collection on the command line, stopped from outside."""

import signal
import threading
from pathlib import Path

import pytest

from autosync.api.cli.commands.collect import collect
from autosync.cluster.cluster_file import save_cluster
from autosync.environment import REPEATS_VARIABLE
from autosync.trials.pool.process_pool import usual_repeats
from autosync.trials.request_names import LauncherName
from tests.api.cli.command import start
from tests.domains import grid_cluster
from tests.waiting import until

PLAN = """
strategies: 3
domains:
  - {name: real, model: bert_3l, cluster: three.yaml, ring_over_compute: 20.0, byte_scale: 1/256}
"""
PROBING = "measuring what messages cost"


@pytest.mark.parametrize(
    ("sent", "ignored"), [(signal.SIGINT, True), (signal.SIGTERM, False)], ids=["SIGINT", "SIGTERM"]
)
def test_a_collection_stops_while_it_probes(
    tmp_path: Path, sent: signal.Signals, ignored: bool
) -> None:
    """ignored: SIGINT is at first, as shells without job control start what ends in `&`."""
    save_cluster(grid_cluster(3), tmp_path / "three.yaml")
    (tmp_path / "plan.yaml").write_text(PLAN)
    words = ("collect", "runtimes", "--plan", "plan.yaml", "--launcher", "local")
    process = start(tmp_path, *words, ignores_interrupt=ignored)
    try:
        until(lambda: PROBING in process.output()[1] or process.poll() is not None, "probing")
        process.send_signal(sent)
        _, told = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, told
    assert PROBING in told
    assert "Stopped: the same command goes on." in told
    assert "Traceback" not in told
    assert not (tmp_path / "runtimes" / "targets" / "real.json").exists()


@pytest.mark.parametrize("launcher", ["auto", "local"])
def test_no_pass_of_a_collection_is_repeated_at_once(
    launcher: LauncherName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever launcher: a third pass comes much later."""
    monkeypatch.setenv(REPEATS_VARIABLE, "2")
    monkeypatch.setattr("autosync.api.cli.stop_signals.stop_on_signals", threading.Event)
    repeats: list[int] = []
    monkeypatch.setattr(
        "autosync.search.collect.collection.collect", lambda *_: repeats.append(usual_repeats())
    )
    collect(tmp_path, launcher=launcher)
    assert repeats == [0]
