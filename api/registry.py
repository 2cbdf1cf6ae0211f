"""The one table from names in requests to launchers and simulators."""

from typing import Literal, get_args

from autosync.errors import NotFound
from autosync.trials.contract import Launcher
from simulator.base import Simulator

LauncherName = Literal["auto", "testbed", "local"]
SimulatorName = Literal["timeline", "analytic"]


def launcher_named(name: str) -> Launcher:
    """`auto` is the testbed where this machine can shape links, else local.

    Raises:
        NotFound: lists the names there are.
    """
    # imported here: the service lists launchers without loading torch
    from autosync.trials.local import LocalLauncher
    from autosync.trials.testbed import TestbedLauncher, testbed_available

    if name == "local" or (name == "auto" and not testbed_available()):
        return LocalLauncher()
    if name in ("testbed", "auto"):
        return TestbedLauncher()
    raise _unknown("launcher", name, get_args(LauncherName))


def simulator_named(name: str) -> Simulator:
    """Raises NotFound, which lists the names there are."""
    from simulator.analytic import AnalyticSimulator
    from simulator.timeline import TimelineSimulator

    if name == "timeline":
        return TimelineSimulator()
    if name == "analytic":
        return AnalyticSimulator()
    raise _unknown("simulator", name, get_args(SimulatorName))


def _unknown(thing: str, name: str, known: tuple[str, ...]) -> NotFound:
    return NotFound(
        f"there is no {thing} {name!r}.",
        thing=thing,
        value=name,
        remedy=f"There are: {', '.join(known)}.",
    )
