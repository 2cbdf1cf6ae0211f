"""The bundled models: what each is and where it is published, and their graphs, read from
datasets/models/ and scaled to other batch sizes."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module as import_python_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosync.bundled_data import data_file
from autosync.documents import from_json
from autosync.errors import InvalidInput, NotFound, NotSupported
from autosync.graph import ModelGraph

if TYPE_CHECKING:
    from torch import nn

    from autosync.importing.training_step import Inputs, Loss


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A bundled model.

    batch_size: default for one device, in samples (sentences for the language models).
    parameters: trainable elements. builder: `module:function` of a function (batch_size) ->
    (module, example_inputs, loss) that builds on whatever device is the default; "" where the
    package has the graph alone. source: where the architecture is published.
    """

    name: str
    title: str
    batch_size: int
    parameters: int
    builder: str
    family: str
    source: str

    def build(self, batch_size: int | None = None) -> "tuple[nn.Module, Inputs, Loss | None]":
        """
        Raises:
            NotSupported: the package has the model's graph, not its code.
        """
        if not self.builder:
            raise NotSupported(
                f"the package has the graph of {self.name}, not its code.",
                thing="model",
                value=self.name,
                remedy="Give the code: timm:NAME, torchvision:NAME, a Hugging Face config.json or "
                "package.module:function.",
            )
        module_name, _, function_name = self.builder.partition(":")
        function: Callable[[int], Any] = getattr(import_python_module(module_name), function_name)
        built: tuple[nn.Module, Inputs, Loss | None] = function(batch_size or self.batch_size)
        return built


Row = tuple[str, str, int, int]
"""Name, title, batch size, parameters."""


def _family(family: str, source: str, file: str, sample: str, *rows: Row) -> list[ModelSpec]:
    """file: the one in this folder whose functions of the models' names build them; "" where the
    package has their graphs alone. sample: what a batch is made of."""
    return [
        ModelSpec(
            name=name,
            title=f"{title}, {sample}",
            batch_size=batch_size,
            parameters=parameters,
            builder=f"autosync.models.{file}:{name}" if file else "",
            family=family,
            source=source,
        )
        for name, title, batch_size, parameters in rows
    ]


def _by_name(*families: list[ModelSpec]) -> dict[str, ModelSpec]:
    return {spec.name: spec for family in families for spec in family}


IMAGES = "224x224 images"

# Batch sizes are table 1 of the AutoSync supplement (5K tokens for the Transformer) where it lists
# the model; otherwise those of the paper that measures it: Poseidon's table 3.6, DeAR's table I,
# HeteroG's table 1 divided by its eight GPUs, PACE, Parallax. The newest models have small ones,
# which fit a device.
BUNDLED: dict[str, ModelSpec] = _by_name(
    _family(
        *("ResNet", "He et al. 2016, arXiv 1512.03385", "resnet", IMAGES),
        ("resnet50", "ResNet-50", 32, 25_557_032),
        ("resnet101", "ResNet-101", 32, 44_549_160),
        ("resnet152", "ResNet-152", 32, 60_192_808),
        ("resnet200", "ResNet-200", 24, 64_673_832),
    ),
    _family(
        *("VGG", "Simonyan and Zisserman 2015, arXiv 1409.1556", "vgg", IMAGES),
        ("vgg16", "VGG-16", 32, 138_357_544),
        ("vgg19", "VGG-19", 32, 143_667_240),
        ("vgg19_22k", "VGG-19 for 21,841 classes", 32, 229_052_817),
    ),
    _family(
        *("DenseNet", "Huang et al. 2017, arXiv 1608.06993", "", IMAGES),
        ("densenet121", "DenseNet-121", 32, 7_978_856),
        ("densenet201", "DenseNet-201", 32, 20_013_928),
    ),
    _family(
        *("GoogLeNet", "Szegedy et al. 2015, arXiv 1409.4842", "", IMAGES),
        ("googlenet", "GoogLeNet", 128, 6_998_552),
    ),
    _family(
        "Inception",
        "Szegedy et al. 2016 and 2017, arXiv 1512.00567 and 1602.07261",
        "",
        "299x299 images",
        ("inception_v3", "Inception-v3", 32, 23_834_568),
        ("inception_v4", "Inception-v4", 64, 42_679_816),
    ),
    _family(
        *("MobileNet", "Sandler et al. 2018, arXiv 1801.04381", "", IMAGES),
        ("mobilenet_v2", "MobileNet-v2", 24, 3_504_872),
    ),
    _family(
        *("NASNet", "Zoph et al. 2018, arXiv 1707.07012", "", "331x331 images"),
        ("nasnet_large", "NASNet-A (6 @ 4032)", 24, 88_753_150),
    ),
    _family(
        *("ViT", "Dosovitskiy et al. 2021, arXiv 2010.11929", "", IMAGES),
        ("vit_large", "ViT-L/16", 32, 304_326_632),
    ),
    _family(
        *("BERT", "Devlin et al. 2019, arXiv 1810.04805", "bert", "sentences of 64 tokens"),
        ("bert_3l", "BERT of 3 layers and 256 hidden, pre-training", 32, 10_478_140),
        ("bert_6l", "BERT of 6 layers and 512 hidden, pre-training", 32, 35_363_644),
        ("bert_base", "BERT-base pre-training (both heads)", 32, 110_106_428),
        ("bert_large", "BERT-large pre-training (both heads)", 8, 336_226_108),
        ("bert_48l", "BERT-large of 48 layers, pre-training", 3, 638_535_484),
    ),
    _family(
        *("XLNet", "Yang et al. 2019, arXiv 1906.08237", "", "sentences of 512 tokens"),
        ("xlnet_large", "XLNet-large pre-training (two streams)", 6, 360_300_800),
        ("xlnet_48l", "XLNet-large of 48 layers, pre-training", 3, 687_800_576),
    ),
    _family(
        "Transformer",
        "Vaswani et al. 2017, arXiv 1706.03762",
        "transformer",
        "sentences of 64 tokens",
        ("transformer", "Transformer base for WMT'14 en-de", 80, 61_399_040),
    ),
    _family(
        *("GPT-2", "Radford et al. 2019", "gpt2", "sentences of 1024 tokens"),
        ("gpt2", "GPT-2 small (tied embedding)", 4, 124_439_808),
        ("gpt2_medium", "GPT-2 medium", 4, 354_823_168),
        ("gpt2_large", "GPT-2 large", 2, 774_030_080),
        ("gpt2_xl", "GPT-2 XL", 1, 1_557_611_200),
    ),
    _family(
        "Llama",
        "Touvron et al. 2023, arXiv 2307.09288; Llama 3, arXiv 2407.21783",
        "llama",
        "sentences of 2048 tokens",
        ("llama_1b", "Llama-3.2-1B in bfloat16", 2, 1_235_814_400),
        ("llama_7b", "Llama-2-7B in bfloat16", 1, 6_738_415_616),
    ),
    _family(
        *("LSTM", "Sutskever et al. 2014, arXiv 1409.3215", "", "sentences of 30 words"),
        ("lstm_seq2seq", "LSTM translation, 4 layers of 1000", 128, 384_112_000),
    ),
    _family(
        *("LSTM", "Jozefowicz et al. 2016, arXiv 1602.02410", "", "20 words"),
        ("lm1b", "LSTM for One Billion Words, sampled softmax", 128, 822_752_126),
    ),
    _family(
        *("NCF", "He et al. 2017, arXiv 1708.05031", "", "MovieLens-20M x16x32"),
        ("ncf_dense", "NCF, dense embedding gradients", 256, 122_870_601),
        ("ncf_sparse", "NCF, sparse embedding gradients", 256, 122_870_601),
    ),
    _family(
        *("DLRM", "Naumov et al. 2019, arXiv 1906.00091", "", "sparse embedding gradients"),
        ("dlrm", "DLRM for Criteo's Kaggle data", 2048, 540_677_217),
        ("dlrm_terabyte", "DLRM for Criteo's Terabyte data", 2048, 3_144_845_185),
    ),
)


ONE_BATCH_SIZE = frozenset({"lm1b"})
"""Models whose step does not grow in proportion to the batch: lm1b's softmax samples 8192 words."""


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
    """The stored graph of a bundled model, scaled where another batch size than the usual one is
    given.

    Raises:
        NotFound: no such model, or its data file is missing.
        InvalidInput: batch_size below 1, or the model has one batch size alone.
    """
    spec = spec_of(name)
    path = graph_file(spec.name)
    graph = from_json(ModelGraph, gzip.decompress(path.read_bytes()), source=str(path))
    if batch_size is None or batch_size == spec.batch_size:
        return graph
    if batch_size < 1 or spec.name in ONE_BATCH_SIZE:
        must = f"be {spec.batch_size}" if spec.name in ONE_BATCH_SIZE else "be at least 1"
        raise InvalidInput(
            f"batch size {batch_size} of model {spec.name!r} must {must}.",
            thing="batch_size",
            value=batch_size,
            remedy=f"Leave it out for the usual one ({spec.batch_size}).",
        )
    return at_batch_size(graph, batch_size)


def at_batch_size(graph: ModelGraph, batch_size: int) -> ModelGraph:
    """The graph of the same step on more or fewer samples: what an import at that batch size
    records, of a model in which all that has the batch dimension grows in proportion to it."""

    def scaled(count: int) -> int:
        return count * batch_size // graph.batch_size

    operations = []
    for each in graph.operations:
        if not each.has_batch_dimension:
            operations.append(each)
            continue
        statistics_bytes = 0  # mean and deviation of each channel, in float32
        if each.type == "native_batch_norm":
            statistics_bytes = 8 * graph.variables[each.variables[0]].elements
        operations.append(
            replace(
                each,
                forward_flops=scaled(each.forward_flops),
                backward_flops=scaled(each.backward_flops),
                output_bytes=scaled(each.output_bytes - statistics_bytes) + statistics_bytes,
            )
        )
    variables = []
    for index, variable in enumerate(graph.variables):
        touched_rows = 0
        if variable.sparse:
            row_bytes = variable.size_bytes // variable.shape[0]
            lookups = (o.output_bytes // row_bytes for o in operations if index in o.variables)
            touched_rows = min(variable.shape[0], sum(lookups))
        factor_rows = scaled(variable.factor_rows)
        variables.append(replace(variable, touched_rows=touched_rows, factor_rows=factor_rows))
    return replace(
        graph, batch_size=batch_size, operations=tuple(operations), variables=tuple(variables)
    )
