"""The one table from names in requests to launchers and simulators."""

import importlib
import logging
from dataclasses import dataclass
from typing import Literal

from autosync.errors import NotFound, NotSupported
from autosync.trials.contract import Launcher, Pool, Workload
from simulator.base import Simulator

LauncherName = Literal["auto", "testbed", "local"]
SimulatorName = Literal["learned", "timeline", "analytic"]
SIMULATORS = {
    "learned": ("simulator.learned.simulators", "linear_simulator"),
    "timeline": ("simulator.timeline", "TimelineSimulator"),
    "analytic": ("simulator.analytic", "AnalyticSimulator"),
}
"""By module and factory: a ranking by the timeline need not load torch for the learned one."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AutoLauncher:
    """The testbed where this machine can have one, else local processes, said so in the log and
    on every trial (`TrialResult.launcher`)."""

    name: str = "auto"

    def open(self, workload: Workload) -> Pool:
        from autosync.trials.local import LocalLauncher
        from autosync.trials.testbed import TestbedLauncher

        try:
            return TestbedLauncher().open(workload)
        except NotSupported as error:
            log.warning("trials run on local processes with unshaped links: %s", error)
            return LocalLauncher().open(workload)


def launcher_named(name: str) -> Launcher:
    """Raises NotFound, which lists the names there are."""
    # imported here: the service knows the names without loading torch
    from autosync.trials.local import LocalLauncher
    from autosync.trials.testbed import TestbedLauncher

    known: dict[str, type[Launcher]] = {
        "auto": AutoLauncher,
        "testbed": TestbedLauncher,
        "local": LocalLauncher,
    }
    if name not in known:
        raise _unknown("launcher", name, tuple(known))
    return known[name]()


def simulator_named(name: str) -> Simulator:
    """Raises NotFound, which lists the names there are."""
    if name not in SIMULATORS:
        raise _unknown("simulator", name, tuple(SIMULATORS))
    module, factory = SIMULATORS[name]
    made: Simulator = getattr(importlib.import_module(module), factory)()
    return made


def _unknown(thing: str, name: str, known: tuple[str, ...]) -> NotFound:
    return NotFound(
        f"there is no {thing} {name!r}.",
        thing=thing,
        value=name,
        remedy=f"There are: {', '.join(known)}.",
    )
