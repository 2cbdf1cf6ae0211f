"""AutoSync: the fastest exact gradient synchronization for a data-parallel PyTorch job."""

import importlib
from typing import TYPE_CHECKING, Any

from autosync.errors import NotSupported

if TYPE_CHECKING:
    from autosync.runtime.distribute import distribute

    tune: Any

__all__ = ["distribute", "tune"]


def __getattr__(name: str) -> Any:
    """Import torch only when the runtime is asked for, and the search only to tune."""
    if name == "distribute":
        from autosync.runtime.distribute import distribute

        return distribute
    if name == "tune":
        return _tune()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _tune() -> Any:
    """`search.live.tune`, by name: this package works without the search beside it."""
    try:
        return importlib.import_module("search.live").tune
    except ModuleNotFoundError as error:
        raise NotSupported(
            f"autosync.tune needs the search, which is not installed here: {error}.",
            thing="autosync.tune",
            value=error.name,
            remedy="Install the whole of autosync on the training hosts, or tune elsewhere and "
            "use autosync.distribute with the bundle.",
        ) from error
