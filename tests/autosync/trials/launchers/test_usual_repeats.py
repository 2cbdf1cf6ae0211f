"""How often pools measure a disturbed pass again."""

import pytest

from autosync.environment import REPEATS_VARIABLE
from autosync.errors import InvalidInput
from autosync.trials.launchers.command_launcher import CommandLauncher
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.launchers.ray_launcher import RayLauncher
from autosync.trials.launchers.testbed_launcher import TestbedLauncher


def repeats_of_launchers() -> list[int]:
    return [
        LocalLauncher().repeats,
        TestbedLauncher().repeats,
        CommandLauncher("ssh").repeats,
        RayLauncher("127.0.0.1:6379").repeats,
    ]


def test_twice_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPEATS_VARIABLE)
    assert repeats_of_launchers() == [2, 2, 2, 2]
    monkeypatch.setenv(REPEATS_VARIABLE, "")
    assert repeats_of_launchers() == [2, 2, 2, 2]
    monkeypatch.setenv(REPEATS_VARIABLE, "5")
    assert repeats_of_launchers() == [5, 5, 5, 5]
    assert LocalLauncher(repeats=1).repeats == 1


@pytest.mark.parametrize("given", ["-1", "two", "1.5", "9" * 5000])
def test_what_is_no_count_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REPEATS_VARIABLE, given)
    with pytest.raises(InvalidInput, match="AUTOSYNC_REPEATS is") as refused:
        LocalLauncher()
    assert refused.value.remedy
