"""The one table from names in requests to launchers and simulators."""

import importlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from autosync.api.db.lookup import found, not_found
from autosync.api.engine.launcher_names import PREFIX, PYTHON, RAY_ADDRESS, LauncherName
from autosync.errors import NotSupported
from autosync.simulator.contract import Simulator
from autosync.trials.contract import Launcher, Pool, Workload

SIMULATORS = {
    "learned": ("autosync.simulator.learned.learned_simulators", "gaussian_simulator"),
    "timeline": ("autosync.simulator.timeline.timeline_simulator", "TimelineSimulator"),
    "analytic": ("autosync.simulator.analytic", "AnalyticSimulator"),
}
"""By module and factory: a ranking by the timeline need not load torch for the learned one."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AutoLauncher:
    """The testbed where this machine can have one, else local processes, said so in the log and
    on every trial (`TrialResult.launcher`)."""

    name: str = "auto"

    def open(self, workload: Workload) -> Pool:
        from autosync.trials.launchers.local_launcher import LocalLauncher
        from autosync.trials.launchers.testbed_launcher import TestbedLauncher

        try:
            return TestbedLauncher().open(workload)
        except NotSupported as error:
            log.warning("trials run on local processes with unshaped links: %s", error)
            return LocalLauncher().open(workload)


def launcher_named(name: str) -> Launcher:
    """Raises NotFound, which lists the names there are; NotSupported as `check_launcher`."""
    check_launcher(name)
    # imported here: the service knows the names without loading torch
    from autosync.trials.launchers.command_launcher import CommandLauncher
    from autosync.trials.launchers.local_launcher import LocalLauncher
    from autosync.trials.launchers.ray_launcher import RayLauncher
    from autosync.trials.launchers.testbed_launcher import TestbedLauncher

    known: dict[str, Callable[[], Launcher]] = {
        "auto": AutoLauncher,
        "testbed": TestbedLauncher,
        "local": LocalLauncher,
        "command": lambda: CommandLauncher(
            os.environ[PREFIX], os.environ.get(PYTHON) or sys.executable
        ),
        "ray": lambda: RayLauncher(os.environ[RAY_ADDRESS]),
    }
    return known[name]()


def check_launcher(name: str) -> None:
    """Raises NotFound, which lists the names there are; NotSupported where the operator has not
    said how the launcher reaches its hosts."""
    if name not in get_args(LauncherName):
        raise not_found("launcher", name, f"There are: {', '.join(get_args(LauncherName))}.")
    needed = {"command": (PREFIX, "--prefix"), "ray": (RAY_ADDRESS, "--ray-address")}
    if name in needed and not os.environ.get(needed[name][0]):
        variable, option = needed[name]
        raise NotSupported(
            f"the launcher {name!r} is not set up here.",
            thing="launcher",
            value=name,
            remedy=f"Whoever starts the service or worker sets {variable} (or {option}).",
        )


def simulator_named(name: str) -> Simulator:
    """Raises NotFound, which lists the names there are."""
    remedy = f"There are: {', '.join(SIMULATORS)}."
    module, factory = found(SIMULATORS.get(name), "simulator", name, remedy)
    made: Simulator = getattr(importlib.import_module(module), factory)()
    return made
