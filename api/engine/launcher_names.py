"""Names of launchers, and how the operator says what they reach. Loads nothing."""

from typing import Literal

LauncherName = Literal["auto", "testbed", "local", "command", "ray"]
REAL_CLUSTERS = frozenset({"command", "ray"})
"""Launchers whose links are the cluster's own: nothing is scaled unless it is asked for."""

PREFIX, PYTHON, RAY_ADDRESS = "AUTOSYNC_PREFIX", "AUTOSYNC_PYTHON", "AUTOSYNC_RAY_ADDRESS"
"""Environment variables by which the operator of a worker says how hosts are reached. A request
only names the launcher: it never carries a command or an address to connect to."""
