"""Graphs of the bundled models: read from datasets/models/, and scaled to other batch sizes."""

import gzip
from dataclasses import replace
from pathlib import Path

from autosync.bundled_data import data_file
from autosync.documents import from_json
from autosync.errors import InvalidInput, NotFound
from autosync.graph import ModelGraph
from autosync.models.model_specs import BUNDLED, ModelSpec

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
