"""The worker of `test_ending`: python -m tests.api.engine.ending_worker URL. The pools of all its
tunings fork their ranks from one process."""

import sys

from autosync.api.cli.stop_signals import leave_when_overdue, stop_on_signals
from autosync.api.engine.queue_worker import work
from autosync.api.engine.registry import AutoLauncher
from autosync.trials.contract import Launcher
from autosync.trials.launchers import local_launcher
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.pool.fork_server import ForkServer


class SharedForkServer(ForkServer):
    """It carries the test's mark, as the ranks that it forks do: it is started anew."""

    def close(self) -> None: ...


def main() -> None:
    shared = SharedForkServer()
    local_launcher.ForkServer = lambda: shared  # type: ignore[assignment,attr-defined,misc]
    launchers: dict[str, Launcher] = {
        "auto": AutoLauncher(),
        "local": LocalLauncher(repeats=0),
        "testbed": TestbedLauncher(repeats=0, check=False),
    }
    stop = stop_on_signals()
    leave_when_overdue(stop)
    work(sys.argv[1], stop, trains=False, launcher_of=launchers.__getitem__)


if __name__ == "__main__":
    main()
