"""Where in the user's code an error arose, and its first line."""

import sysconfig
import traceback
from importlib.util import find_spec
from pathlib import Path

NOT_THE_USERS = ("torch", "transformers", "autosync")
"""Packages whose frames only lead to what the user wrote."""


def first_line(error: BaseException) -> str:
    """The error in one line, without a traceback."""
    text = str(error).strip().splitlines()
    line = text[0].strip().rstrip(".") if text else ""
    line = line if len(line) <= 200 else line[:197] + "..."
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def at(error: BaseException) -> str:
    """` (file:line in function)`, to stand in a sentence: of the innermost frame that is neither
    torch's, transformers', AutoSync's nor Python's own; of the innermost third-party frame where
    there is none such. Empty where only torch and AutoSync ran."""
    frames = list(reversed(traceback.extract_tb(error.__traceback__)))
    for skipped in (_library_folders(), _folders_of("torch", "autosync")):
        for frame in frames:
            path = Path(frame.filename)
            if path.is_file() and not _is_within(path.resolve(), skipped):
                return f" ({_shown(path.resolve())}:{frame.lineno} in {frame.name})"
    return ""


def _library_folders() -> list[Path]:
    return _folders_of(*NOT_THE_USERS)


def _folders_of(*packages: str) -> list[Path]:
    folders = []
    for package in packages:
        spec = find_spec(package)
        if spec is not None:
            folders += [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
    return folders


def _is_within(path: Path, folders: list[Path]) -> bool:
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    if path.is_relative_to(standard) and "site-packages" not in path.parts:
        return True
    return any(path.is_relative_to(folder) for folder in folders)


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
