"""Models as other libraries and files name them: `timm:NAME`, `torchvision:NAME`, a Hugging Face
folder or `config.json`, an ONNX file."""

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from autosync.api.cli.console import warn
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.graph import ModelGraph
    from autosync.importing import ModelTarget

LIBRARIES = ("timm", "torchvision")
MAX_SNIFFED_BYTES = 4_000_000
"""A larger JSON file is no config.json."""


def is_library_model(model: str) -> bool:
    """`timm:resnet50`."""
    return model.partition(":")[0] in LIBRARIES and ":" in model


def is_onnx_file(model: str) -> bool:
    return model.endswith(".onnx")


def is_transformers_model(model: str) -> bool:
    """A folder with a config.json, or a JSON file with a model's type in the place of a graph."""
    path = Path(model)
    if path.is_dir():
        return (path / "config.json").is_file()
    if not model.endswith(".json") or not path.is_file():
        return False
    if path.stat().st_size > MAX_SNIFFED_BYTES:
        return False
    with suppress(OSError, ValueError, RecursionError):
        data = json.loads(path.read_bytes())
        return isinstance(data, dict) and "model_type" in data and "operations" not in data
    return False


def is_foreign_module(model: str) -> bool:
    """Whether `load_foreign_module` takes it."""
    return is_library_model(model) or is_transformers_model(model)


def load_foreign_module(
    model: str, batch_size: int | None, length: int | None, *, allocate: bool = False
) -> "ModelTarget":
    """The module with a batch and its loss. allocate: with real weights.

    Raises:
        InvalidInput: no batch size, or what the library or the file does not take.
        NotSupported: the library is not installed.
    """
    size = _batch_size(model, batch_size)
    if is_library_model(model):
        from autosync.importing.vision_libraries import load_library_model

        return load_library_model(model, size, allocate=allocate)
    from autosync.importing.transformers_config import load_transformers_config

    return load_transformers_config(Path(model), size, length, allocate=allocate)


def foreign_name(model: str) -> str:
    """What its graph is called."""
    if is_library_model(model):
        return model.partition(":")[2]
    path = Path(model).resolve()
    return path.parent.name if path.name == "config.json" else path.stem


def onnx_graph(model: str, batch_size: int | None, length: int | None) -> "ModelGraph":
    """The graph of an ONNX file; says what it does not know."""
    from autosync.api.cli.arguments.document_arguments import read_bytes
    from autosync.interop.onnx_graph import MAX_ONNX_BYTES, read_onnx_graph

    size = _batch_size(model, batch_size)
    data = read_bytes(Path(model), "ONNX file", MAX_ONNX_BYTES)
    imported = read_onnx_graph(data, foreign_name(model), size, length, model)
    if imported.estimated:
        listed = ", ".join(f"{kind} ({n})" for kind, n in sorted(imported.estimated.items()))
        warn(f"{model}: operations that are not known, estimated by the bytes they read: {listed}")
    return imported.graph


def _batch_size(model: str, batch_size: int | None) -> int:
    if batch_size is None or batch_size < 1:
        raise InvalidInput(
            f"{model} states no batch size.",
            thing="--batch",
            value=batch_size,
            remedy="Say how many samples one replica trains on at once, e.g. --batch 32.",
        )
    return batch_size
