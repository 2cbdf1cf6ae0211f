"""The version of what answers, read once: it is looked for among all that is installed."""

import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def own_version() -> str:
    """In a clone that is not installed, what its pyproject.toml says."""
    try:
        return version("autosync")
    except PackageNotFoundError:
        project = Path(__file__).parents[1] / "pyproject.toml"
        found: str = tomllib.loads(project.read_text())["project"]["version"]
        return found
