"""The version of what answers, read once: it is looked for among all that is installed."""

from functools import cache
from importlib.metadata import version


@cache
def own_version() -> str:
    return version("autosync")
