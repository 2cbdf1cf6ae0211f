"""AutoSync: the fastest exact gradient synchronization for a data-parallel PyTorch job."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosync.runtime.distribute import distribute

__all__ = ["distribute"]


def __getattr__(name: str) -> Any:
    """Import torch only when the runtime is asked for."""
    if name == "distribute":
        from autosync.runtime.distribute import distribute

        return distribute
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
