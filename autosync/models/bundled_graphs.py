"""Graphs of the bundled models: read from datasets/models/, or imported anew."""

import gzip
from pathlib import Path

from autosync.bundled_data import data_file
from autosync.documents import from_json
from autosync.errors import InvalidInput, NotFound
from autosync.graph import ModelGraph
from autosync.models.model_specs import BUNDLED, ModelSpec


def is_bundled(name: str) -> bool:
    return _spelled(name) in BUNDLED


def _spelled(name: str) -> str:
    """`bert_base` may be written `BERT-base`."""
    return name.lower().replace("-", "_")


def spec_of(name: str) -> ModelSpec:
    """The bundled model of this name, in capitals and with hyphens too.

    Raises:
        NotFound: lists the names there are.
    """
    spec = BUNDLED.get(_spelled(name))
    if spec is None:
        raise NotFound(
            f"there is no bundled model {name!r}.",
            thing="model",
            value=name,
            remedy=f"Bundled: {', '.join(BUNDLED)}.",
        )
    return spec


def graph_file(name: str) -> Path:
    """A bundled model's graph at its default batch size: canonical JSON, compressed."""
    return data_file("models", f"{name}.json.gz")


def bundled(name: str, batch_size: int | None = None) -> ModelGraph:
    """The graph of a bundled model: read from datasets/ at the default batch size, imported anew
    (seconds) at any other.

    Raises:
        NotFound: no such model, or its data file is missing.
        InvalidInput: batch_size below 1.
    """
    spec = spec_of(name)
    if batch_size is None or batch_size == spec.batch_size:
        path = graph_file(spec.name)
        return from_json(ModelGraph, gzip.decompress(path.read_bytes()), source=str(path))
    if batch_size < 1:
        raise InvalidInput(
            f"batch size {batch_size} of model {spec.name!r} must be at least 1.",
            thing="batch_size",
            value=batch_size,
            remedy=f"Leave it out for the usual one ({spec.batch_size}), or give 1 or more.",
        )
    return import_bundled(spec, batch_size)


def import_bundled(spec: ModelSpec, batch_size: int) -> ModelGraph:
    """Record the model anew."""
    import torch

    from autosync.importing import import_module

    with torch.device("meta"):
        module, inputs, loss = spec.build(batch_size)
    return import_module(module, inputs, loss, name=spec.name, batch_size=batch_size)
