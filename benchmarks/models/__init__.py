"""Models of papers whose graphs the package has, but not their code, and imports of all of them.

`scripts/write_model_graphs.py` writes the graphs to datasets/models/.
"""

from importlib import import_module as import_python_module
from typing import Any

from autosync.graph import ModelGraph
from autosync.models import spec_of

FILES = {
    "densenet": ("densenet121", "densenet201"),
    "googlenet": ("googlenet",),
    "inception": ("inception_v3", "inception_v4"),
    "mobilenet": ("mobilenet_v2",),
    "nasnet": ("nasnet_large",),
    "vit": ("vit_large",),
    "xlnet": ("xlnet_large", "xlnet_48l"),
    "seq2seq": ("lstm_seq2seq",),
    "lm1b": ("lm1b",),
    "ncf": ("ncf_dense", "ncf_sparse"),
    "dlrm": ("dlrm", "dlrm_terabyte"),
}
"""File here to the models that functions of their names build in it."""


def build(name: str, batch_size: int | None = None) -> Any:
    """Module, example inputs and loss of a bundled model, on whatever device is the default."""
    spec = spec_of(name)
    file = next((file for file, names in FILES.items() if spec.name in names), None)
    if file is None:
        return spec.build(batch_size)
    module = import_python_module(f"benchmarks.models.{file}")
    return getattr(module, spec.name)(batch_size or spec.batch_size)


def import_bundled(name: str, batch_size: int | None = None) -> ModelGraph:
    """Record the model, at its usual batch size where none is given."""
    import torch

    from autosync.importing import import_module

    spec = spec_of(name)
    size = batch_size or spec.batch_size
    with torch.device("meta"):
        module, inputs, loss = build(name, size)
    return import_module(module, inputs, loss, name=spec.name, batch_size=size)
