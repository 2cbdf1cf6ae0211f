"""The one table from names in requests to launchers and simulators."""

import importlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import get_args

from autosync.api.db.lookup import found, not_found
from autosync.environment import (
    PREFIX_VARIABLE,
    PYTHON_VARIABLE,
    RAY_ADDRESS_VARIABLE,
    SHARE_GPUS_VARIABLE,
)
from autosync.errors import NotSupported
from autosync.simulator.simulator_contract import Simulator
from autosync.trials.contract import Launcher, OnWait, Pool, Workload
from autosync.trials.request_names import LauncherName

LEARNED = "learned"
"""The version in use of the simulator that learns; without a database, the one that comes with
AutoSync."""
SIMULATORS = {
    LEARNED: "autosync.simulator.learned.checkpoint",
    "timeline": "autosync.simulator.timeline.timeline_simulator",
    "analytic": "autosync.simulator.analytic",
}
"""By module: a ranking by the timeline need not load what the others need."""
RETIRED = ("ensemble", "gaussian", "trees", "linear", "lstm", "gat", "nearest")
"""Names that earlier versions had."""
BUNDLED_VERSION = 0
"""The number of what comes with AutoSync, among the versions of the learned simulator."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AutoLauncher:
    """The testbed where this machine can have one, else local processes, said so, with the reason,
    to `on_wait` and in the log, and on every trial (`TrialResult.launcher`)."""

    share_gpus: bool = False
    name: str = "auto"
    on_wait: OnWait | None = None

    def with_wait_reports(self, on_wait: OnWait) -> "AutoLauncher":
        return replace(self, on_wait=on_wait)

    def open(self, workload: Workload) -> Pool:
        from autosync.trials.launchers.local_launcher import LocalLauncher
        from autosync.trials.launchers.testbed_launcher import TestbedLauncher

        try:
            return TestbedLauncher(share_gpus=self.share_gpus, on_wait=self.on_wait).open(workload)
        except NotSupported as error:
            why = f"trials run over the loopback, whose links are not shaped: {error.message}"
            log.warning("%s", why)
            if self.on_wait is not None:
                self.on_wait(why)
            return LocalLauncher(share_gpus=self.share_gpus, on_wait=self.on_wait).open(workload)


def launcher_named(name: str) -> Launcher:
    """Raises NotFound, which lists the names there are; NotSupported as `check_launcher`."""
    check_launcher(name)
    # imported here: the service knows the names without loading torch
    from autosync.trials.launchers.command_launcher import CommandLauncher
    from autosync.trials.launchers.local_launcher import LocalLauncher
    from autosync.trials.launchers.ray_launcher import RayLauncher
    from autosync.trials.launchers.testbed_launcher import TestbedLauncher

    share_gpus = os.environ.get(SHARE_GPUS_VARIABLE) == "1"
    known: dict[str, Callable[[], Launcher]] = {
        "auto": lambda: AutoLauncher(share_gpus=share_gpus),
        "testbed": lambda: TestbedLauncher(share_gpus=share_gpus),
        "local": lambda: LocalLauncher(share_gpus=share_gpus),
        "command": lambda: CommandLauncher(
            os.environ[PREFIX_VARIABLE],
            os.environ.get(PYTHON_VARIABLE) or sys.executable,
            share_gpus=share_gpus,
        ),
        "ray": lambda: RayLauncher(os.environ[RAY_ADDRESS_VARIABLE], share_gpus=share_gpus),
    }
    return known[name]()


def launchers_here() -> tuple[LauncherName, ...]:
    """Those that are set up."""
    return tuple(name for name in get_args(LauncherName) if _not_set_up(name) is None)


def check_launcher(name: str) -> None:
    """Raises NotFound, which lists the names there are; NotSupported where nothing says how
    the launcher reaches its hosts."""
    if name not in get_args(LauncherName):
        raise not_found("launcher", name, f"There are: {', '.join(get_args(LauncherName))}.")
    if (missing := _not_set_up(name)) is not None:
        variable, option = missing
        raise NotSupported(
            f"the launcher {name!r} is not set up here.",
            thing="launcher",
            value=name,
            remedy="Start what runs the trials (`autosync tune`, `probe` or `worker`) with "
            f"{option}, or set {variable} for it. A service offers the launcher only if "
            "`autosync serve` has it, too, wherever its workers run.",
        )


def _not_set_up(name: str) -> tuple[str, str] | None:
    """The variable and the option that say how the launcher reaches its hosts, where neither is
    given."""
    needed = {
        "command": (PREFIX_VARIABLE, "--prefix"),
        "ray": (RAY_ADDRESS_VARIABLE, "--ray-address"),
    }
    found = needed.get(name)
    return None if found is None or os.environ.get(found[0]) else found


def simulator_named(name: str) -> Simulator:
    """Raises NotFound, which lists the names there are."""
    refuse_retired(name)
    remedy = f"There are: {', '.join(SIMULATORS)}."
    module = importlib.import_module(found(SIMULATORS.get(name), "simulator", name, remedy))
    made: Simulator
    match name:
        case "timeline":
            made = module.TimelineSimulator()
        case "analytic":
            made = module.AnalyticSimulator()
        case _:
            made = module.default_simulator()
    return made


def refuse_retired(name: str) -> None:
    """Raises NotFound for a name that earlier versions had."""
    if name in RETIRED:
        message = f"the simulator {name!r} is no longer there: {LEARNED!r} is the one that learns."
        raise not_found("simulator", name, f"Use one of: {', '.join(SIMULATORS)}.", message)
