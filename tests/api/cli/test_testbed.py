"""An emulated cluster by hand: up, looked into, down."""

from pathlib import Path

import pytest

from autosync.trials.testbed import namespaces
from tests.api.cli.command import autosync, small_inputs


@pytest.mark.testbed
@pytest.mark.usefixtures("testbed_possible")
def test_a_testbed_is_built_entered_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    _, cluster = small_inputs(tmp_path)
    try:
        output = autosync(tmp_path, "testbed", "up", cluster, "--byte-scale", "0.5").stdout
        name, _, rest = output.partition(": ")
        assert rest.startswith("2 nodes, 10.77.0.1, 10.77.0.2")
        listed = autosync(tmp_path, "testbed", "status").stdout
        assert name in listed
        assert "until down" in listed
        looked = ("sh", "-c", "tc qdisc show dev eth0; exit 3")
        shown = autosync(tmp_path, "testbed", "exec", name, "1", "--", *looked, code=3).stdout
        assert "htb" in shown
        assert f"{name} is gone" in autosync(tmp_path, "testbed", "down", name).stdout
        assert namespaces.status() == ()
    finally:
        for left in namespaces.status():
            namespaces.down(left)
