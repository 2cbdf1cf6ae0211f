"""AutoSync: the fastest exact gradient synchronization for a data-parallel PyTorch job.

The files of this folder and of `cluster` are the documents (graph, cluster, domain, strategy,
population, bundle), with what reads, checks and profiles them. They import no package but `plan`,
`importing` and the documents of `extensions`, and load no torch unless it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autosync.errors import NotSupported

if TYPE_CHECKING:
    from autosync.api.client.rest_client import Client
    from autosync.runtime.distributed import detach, distribute
    from autosync.runtime.gradient_norm import clip_grad_norm_
    from autosync.runtime.share_sampler import ShareSampler, local_batch_size
    from autosync.runtime.training_state import TrainingState

    diagnose: Any
    tune: Any

__all__ = [
    "Client",
    "ShareSampler",
    "TrainingState",
    "clip_grad_norm_",
    "detach",
    "diagnose",
    "distribute",
    "local_batch_size",
    "tune",
]

_HOMES = {
    "Client": "autosync.api.client.rest_client",  # loads no torch
    "ShareSampler": "autosync.runtime.share_sampler",
    "TrainingState": "autosync.runtime.training_state",
    "clip_grad_norm_": "autosync.runtime.gradient_norm",
    "detach": "autosync.runtime.distributed",
    "diagnose": "autosync.search.live.diagnosis",  # as `tune`
    "distribute": "autosync.runtime.distributed",
    "local_batch_size": "autosync.runtime.share_sampler",
    "tune": "autosync.search.live.live_tuning",  # by name only: a job may lack the search
}


def __getattr__(name: str) -> Any:
    """Import torch only when the runtime is asked for, and the search only to tune."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if name not in ("diagnose", "tune"):
            raise
        raise NotSupported(
            f"autosync.{name} needs the search, which is not installed here: {error}.",
            thing=f"autosync.{name}",
            value=error.name,
            remedy="pip install 'autosync[tune]' on the training hosts; autosync.distribute with a "
            "bundle from elsewhere needs the core alone.",
        ) from error
