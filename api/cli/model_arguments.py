"""MODEL as it was typed: its graph, or the module itself. Refusals name what was typed."""

import json
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from autosync.api.cli.console import warn
from autosync.api.cli.domain_arguments import read_bytes, unknown_name
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    import torch
    from torch import nn

    from autosync.graph import ModelGraph
    from autosync.importing import Examples, ModelTarget
    from autosync.importing.training_step import Inputs, Loss


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
    from autosync.interop.onnx_graph import MAX_ONNX_BYTES, read_onnx_graph

    size = _batch_size(model, batch_size)
    data = read_bytes(Path(model), "ONNX file", MAX_ONNX_BYTES)
    imported = read_onnx_graph(data, foreign_name(model), size, length, model)
    if imported.estimated:
        listed = ", ".join(f"{kind} ({n})" for kind, n in sorted(imported.estimated.items()))
        told = f"{model}: operations that are not known, estimated by the bytes they read: {listed}"
        warn(escape(told))
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


@dataclass(frozen=True, slots=True)
class RecordingChoice:
    """values: a step that depends on values runs on the CPU. length: tokens in a sentence, where
    neither a graph nor a function says it. autocast: name of the type of mixed precision."""

    values: bool = False
    length: int | None = None
    autocast: str | None = None


def load_graph(
    model: str, batch_size: int | None, choice: RecordingChoice | None = None
) -> "ModelGraph":
    """The graph of a bundled model, of a graph JSON, of another library's model, or of
    `package.module:function`."""
    how = choice or RecordingChoice()
    _check_no_path(model)
    if how.length is not None and not (is_onnx_file(model) or is_transformers_model(model)):
        from autosync.api.engine.request_checks import refuse_given

        where = f"on {model!r}, which is no configuration or ONNX file here"
        remedy = "Leave it out: a graph, a function and the name of a model state their own sizes."
        refuse_given({"--length": how.length}, where, remedy)
    if is_foreign_module(model):
        found = load_foreign_module(model, batch_size, how.length, allocate=how.values)
        return _target_graph(found, foreign_name(model), how)
    if ":" in model and not _is_file_name(model):
        return _import_target(model, batch_size, how)
    if not _is_file_name(model):
        return _bundled_graph(model, batch_size, how)
    if how.autocast is not None:
        raise InvalidInput(
            f"{model}: --autocast records a module, and this is a graph already.",
            thing="--autocast",
            value=how.autocast,
            remedy="Give a bundled name, package.module:function, a config.json or timm:NAME.",
        )
    if is_onnx_file(model):
        return onnx_graph(model, batch_size, how.length)
    return _graph_file(Path(model), batch_size)


def _check_no_path(model: str) -> None:
    """`nanogpt.py` and `models/nanogpt.py:example` name a file where a module is asked for; the
    refusal says how to name it, and which functions the file has. `nanogpt.py:example` is taken as
    `nanogpt:example`."""
    place, colon, function = model.partition(":")
    path = Path(place)
    is_in_folder = bool(colon) and "/" in place
    if not is_in_folder and (function or not place.endswith(".py")):
        return
    module = path if path.suffix != ".py" else path.with_suffix("")
    folder, dotted = Path(), ".".join(module.parts)
    if path.is_absolute() or ".." in module.parts or not dotted.replace(".", "_").isidentifier():
        folder, dotted = module.parent, module.name
    named = [function] if function else _functions_of(path)
    inside = "" if folder == Path() else f" in the folder {folder}"
    way = " or ".join(f"{dotted}:{name}" for name in named[:4]) or f"{dotted}:FUNCTION"
    missing = "" if path.with_suffix(".py").is_file() else f" There is no file {place!r} here."
    raise InvalidInput(
        f"{model!r} names a file, a model is a function in a module.{missing}",
        thing="model",
        value=model,
        remedy=f"Give {way}{inside}: a function without arguments that returns (module, example "
        "inputs, loss).",
    )


def _functions_of(path: Path) -> list[str]:
    """Those in the file that can be called without arguments; none where it cannot be read."""
    import ast

    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []
    return [
        each.name
        for each in body
        if isinstance(each, ast.FunctionDef)
        and not each.name.startswith("_")
        and len(each.args.args) == len(each.args.defaults)
        and not each.args.posonlyargs
        and all(each.args.kw_defaults)
    ]


def _is_file_name(model: str) -> bool:
    return model.endswith((".json", ".onnx")) or "/" in model or Path(model).is_file()


def _graph_file(path: Path, batch_size: int | None) -> "ModelGraph":
    from autosync.documents import from_json
    from autosync.graph import ModelGraph

    graph = from_json(ModelGraph, read_bytes(path, "graph"), source=str(path))
    if batch_size is not None and batch_size != graph.batch_size:
        raise InvalidInput(
            f"{path} was imported at batch size {graph.batch_size}, but --batch is {batch_size}.",
            thing="--batch",
            value=batch_size,
            remedy="Import the model again at that batch size with `autosync import`.",
        )
    return graph


def _import_target(target: str, batch_size: int | None, choice: RecordingChoice) -> "ModelGraph":
    found = _loaded_target(target, batch_size, allocate=choice.values)
    return _target_graph(found, target.partition(":")[2], choice)


def _loaded_target(target: str, batch_size: int | None, *, allocate: bool) -> "ModelTarget":
    from autosync.importing import load_target

    found = load_target(target, allocate=allocate)
    if batch_size is not None and batch_size != found.batch_size:
        raise InvalidInput(
            f"{target} makes inputs of batch size {found.batch_size}, but --batch is {batch_size}.",
            thing="--batch",
            value=batch_size,
            remedy="Let the function make inputs of that batch size.",
        )
    return found


def _target_graph(found: "ModelTarget", name: str, choice: RecordingChoice) -> "ModelGraph":
    inputs, values, autocast = found.example_inputs, choice.values, choice.autocast
    return recorded_graph(
        found.module, inputs, found.loss, name, found.batch_size, values, autocast
    )


def autocast_type(name: str | None) -> "torch.dtype | None":
    """Of the option --autocast."""
    import torch

    found: torch.dtype | None = getattr(torch, name) if name else None
    return found


def recorded_graph(
    module: "nn.Module",
    inputs: "Inputs | Examples",
    loss: "Loss | None",
    name: str,
    batch_size: int,
    values: bool,
    autocast: str | None = None,
) -> "ModelGraph":
    """The module's graph; what the recording warns of is said in a line each."""
    from autosync.importing import import_module

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = import_module(
            module,
            inputs,
            loss,
            name=name,
            batch_size=batch_size,
            values=values,
            autocast=autocast_type(autocast),
        )
    for warning in caught:
        if warning.category is UserWarning and str(warning.message).startswith(repr(name)):
            warn(escape(str(warning.message)))
    return graph


def _bundled_graph(name: str, batch_size: int | None, choice: RecordingChoice) -> "ModelGraph":
    from autosync.models import BUNDLED, bundled, is_bundled, spec_of

    if not is_bundled(name):
        remedy = "A graph JSON or package.module:function will do as well."
        raise unknown_name("model", name, list(BUNDLED), remedy)
    if choice.autocast is None:
        return bundled(name, batch_size)
    import torch

    spec = spec_of(name)
    size = spec.batch_size if batch_size is None else batch_size
    with torch.device("meta"):
        module, inputs, loss = spec.build(size)
    return recorded_graph(module, inputs, loss, spec.name, size, False, choice.autocast)


def load_module(
    model: str, batch_size: int | None
) -> "tuple[nn.Module, Inputs | Examples, Loss | None, int]":
    """The module itself with real weights, its inputs, loss and batch size, for measuring."""
    from autosync.models import BUNDLED, is_bundled, spec_of

    _check_no_path(model)
    if is_foreign_module(model) or ":" in model:
        found = (
            load_foreign_module(model, batch_size, None, allocate=True)
            if is_foreign_module(model)
            else _loaded_target(model, batch_size, allocate=True)
        )
        return found.module, found.example_inputs, found.loss, found.batch_size
    if is_bundled(model):
        spec = spec_of(model)
        size = batch_size or spec.batch_size
        return *spec.build(size), size
    if _is_file_name(model):
        raise InvalidInput(
            f"{model} names a file: a graph has no code that could be run and measured.",
            thing="model",
            value=model,
            remedy="Estimate it with --device TYPE, or give package.module:function.",
        )
    raise unknown_name("model", model, list(BUNDLED), "package.module:function will do as well.")
