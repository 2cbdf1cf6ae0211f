"""AutoSync: the fastest exact gradient synchronization for a data-parallel PyTorch job."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosync.runtime.distribute import distribute
    from autosync.runtime.sampler import ShareSampler, local_batch_size

__all__ = ["ShareSampler", "distribute", "local_batch_size"]

_HOMES = {
    "ShareSampler": "autosync.runtime.sampler",
    "distribute": "autosync.runtime.distribute",
    "local_batch_size": "autosync.runtime.sampler",
}


def __getattr__(name: str) -> Any:
    """Import torch only when the runtime is asked for."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
