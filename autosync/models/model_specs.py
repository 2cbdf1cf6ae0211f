"""The bundled models by name, and their graphs from datasets/models/."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module as import_python_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosync.bundled_data import data_file
from autosync.documents import from_json
from autosync.errors import InvalidInput, NotFound
from autosync.graph import ModelGraph

if TYPE_CHECKING:
    from torch import nn

    from autosync.importing.example_inputs import Inputs
    from autosync.importing.training_step import Loss


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A bundled model.

    batch_size: default for one device, in samples (sentences for the language models).
    parameters: trainable elements. builder: `module:function` of a function (batch_size) ->
    (module, example_inputs, loss) that builds on whatever device is the default.
    """

    name: str
    title: str
    batch_size: int
    parameters: int
    builder: str

    def build(self, batch_size: int | None = None) -> "tuple[nn.Module, Inputs, Loss | None]":
        module_name, _, function_name = self.builder.partition(":")
        function: Callable[[int], Any] = getattr(import_python_module(module_name), function_name)
        built: tuple[nn.Module, Inputs, Loss | None] = function(batch_size or self.batch_size)
        return built


def _specs(*specs: ModelSpec) -> dict[str, ModelSpec]:
    return {spec.name: spec for spec in specs}


# Batch sizes are table 1 of the AutoSync supplement (5K tokens for the Transformer) where it
# lists the model.
BUNDLED: dict[str, ModelSpec] = _specs(
    ModelSpec(
        "resnet50",
        "ResNet-50, 224x224 images",
        32,
        25_557_032,
        "autosync.models.resnet:resnet50",
    ),
    ModelSpec(
        "resnet101",
        "ResNet-101, 224x224 images",
        32,
        44_549_160,
        "autosync.models.resnet:resnet101",
    ),
    ModelSpec(
        "vgg16",
        "VGG-16, 224x224 images",
        32,
        138_357_544,
        "autosync.models.vgg:vgg16",
    ),
    ModelSpec(
        "densenet121",
        "DenseNet-121, 224x224 images",
        32,
        7_978_856,
        "autosync.models.densenet:densenet121",
    ),
    ModelSpec(
        "bert_3l",
        "BERT of 3 layers and 256 hidden, pre-training, sentences of 64 tokens",
        32,
        10_478_140,
        "autosync.models.bert:bert_3l",
    ),
    ModelSpec(
        "bert_6l",
        "BERT of 6 layers and 512 hidden, pre-training, sentences of 64 tokens",
        32,
        35_363_644,
        "autosync.models.bert:bert_6l",
    ),
    ModelSpec(
        "bert_base",
        "BERT-base pre-training (both heads), sentences of 64 tokens",
        32,
        110_106_428,
        "autosync.models.bert:bert_base",
    ),
    ModelSpec(
        "bert_large",
        "BERT-large pre-training (both heads), sentences of 64 tokens",
        8,
        336_226_108,
        "autosync.models.bert:bert_large",
    ),
    ModelSpec(
        "transformer",
        "Transformer base for WMT'14 en-de, sentences of 64 tokens",
        80,
        61_399_040,
        "autosync.models.transformer:transformer_base",
    ),
    ModelSpec(
        "ncf_dense",
        "NCF on MovieLens-20M x16x32, dense embedding gradients",
        256,
        122_870_601,
        "autosync.models.ncf:ncf_dense",
    ),
    ModelSpec(
        "ncf_sparse",
        "NCF on MovieLens-20M x16x32, sparse embedding gradients",
        256,
        122_870_601,
        "autosync.models.ncf:ncf_sparse",
    ),
    ModelSpec(
        "dlrm",
        "DLRM for Criteo's Kaggle data, sparse embedding gradients",
        2048,
        540_677_217,
        "autosync.models.dlrm:dlrm_kaggle",
    ),
    ModelSpec(
        "gpt2",
        "GPT-2 small (tied embedding), sentences of 1024 tokens",
        4,
        124_439_808,
        "autosync.models.gpt2:gpt2_small",
    ),
)


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
    """The imported graph of a bundled model at its default batch size."""
    return data_file("models", f"{name}.json")


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
        return from_json(ModelGraph, path.read_bytes(), source=str(path))
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
