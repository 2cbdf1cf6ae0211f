"""The names by which commands and requests ask for a launcher; quick to import."""

from typing import Literal

LauncherName = Literal["auto", "testbed", "local", "command", "ray"]

REAL_CLUSTERS = frozenset({"command", "ray"})
"""Launchers whose links are the cluster's own: nothing is scaled unless it is asked for."""
