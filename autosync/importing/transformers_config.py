"""A model of Hugging Face transformers from its `config.json`: no weights, no network, no code but
the installed library's own."""

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from autosync.errors import AutosyncError, InvalidInput, NotFound, NotSupported
from autosync.importing.model_target import ModelTarget
from autosync.importing.refusals import first_line

MAX_CONFIG_BYTES = 4_000_000
MAX_LAYERS = 2048
USUAL_LENGTH = 512
"""Tokens in a sentence, where the model takes as many."""

IGNORED = frozenset(
    {
        "auto_map",
        "custom_pipelines",
        "quantization_config",
        *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
        *("experts_implementation", "_experts_implementation"),
    }
)
"""Names of code or kernels to fetch, and of how weights are stored: none of it is structure."""

WORD_LABELS = ("ForCausalLM", "ForMaskedLM", "LMHeadModel", "ForConditionalGeneration")
CLASS_LABELS = ("ForSequenceClassification", "ForImageClassification")
OWN_FUNCTION = "Give package.module:function instead, which returns module, inputs and loss."


def load_transformers_config(
    path: Path, batch_size: int, length: int | None = None, *, allocate: bool = False
) -> ModelTarget:
    """The model that a `config.json` (or the folder that holds it) describes, with a batch of zeros
    and the loss of its own.

    length: tokens in a sentence; None for 512, or fewer where the model takes fewer. allocate:
    build real weights, for measuring.

    Code that a configuration names (`auto_map`, kernels) is never fetched or run: a model whose
    code is not in the installed transformers is refused.

    Raises:
        NotFound: no such file.
        InvalidInput: not a configuration, or one that names no architecture with a loss.
        NotSupported: transformers is not installed, or does not know the model.
    """
    file = path / "config.json" if path.is_dir() else path
    data = _read(file)
    architecture = _architecture(data, file)
    transformers = _library()
    config = _config(transformers, data, file)
    model_class = _model_class(transformers, architecture, file)
    try:
        inputs = _inputs(model_class, config, batch_size, length, architecture)
        with torch.device("cpu" if allocate else "meta"):
            module = model_class._from_config(config)
        inputs = {name: _of_type(value, module.dtype) for name, value in inputs.items()}
    except AutosyncError:
        raise
    except Exception as error:  # whatever torch and the library raise over odd values
        why = f"{architecture} cannot be built: {first_line(error)}"
        raise _refused(file, why, architecture) from None
    return ModelTarget(module.train(), inputs, None, batch_size)


def _read(file: Path) -> dict[str, Any]:
    try:
        size = file.stat().st_size
        text = file.read_bytes() if size <= MAX_CONFIG_BYTES else b""
    except OSError as error:
        raise NotFound(
            f"cannot read {str(file)!r}: {error.strerror}.",
            thing="model",
            value=str(file),
            remedy="Give a config.json, or the folder that holds one.",
        ) from None
    if size > MAX_CONFIG_BYTES:
        raise _refused(file, f"it has {size} bytes, more than {MAX_CONFIG_BYTES}", size)
    try:
        data = json.loads(text)
        kept = _structure(data) if isinstance(data, dict) else {}
    except (ValueError, RecursionError) as error:
        raise _refused(file, f"it is no JSON: {first_line(error)}", "JSON") from None
    if "model_type" not in kept:
        raise _refused(file, "it has no field 'model_type'", "model_type")
    for name, value in _entries(kept):
        is_count = "layer" in name and "size" not in name  # vocab_size_per_layer_input is none
        if is_count and type(value) is int and value > MAX_LAYERS:
            raise _refused(file, f"{name} is {value}, more than {MAX_LAYERS}", value)
    return kept


def _entries(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        yield name, value
        if isinstance(value, dict):
            yield from _entries(value)


def _structure(data: dict[str, Any]) -> dict[str, Any]:
    """Without what is IGNORED, at any depth; no weights of a backbone are fetched."""
    kept = {
        name: _structure(value) if isinstance(value, dict) else value
        for name, value in data.items()
        if name not in IGNORED
    }
    if "use_pretrained_backbone" in kept:
        kept["use_pretrained_backbone"] = False
    return kept


def _architecture(data: dict[str, Any], file: Path) -> str:
    named = data.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise _refused(file, "it names no architecture", named)
    return named[0]


def _library() -> Any:
    try:
        import transformers
    except Exception as error:  # absent, or a part of it that does not load
        raise NotSupported(
            f"a config.json needs the library transformers, which does not load: "
            f"{first_line(error)}.",
            thing="transformers",
            value=type(error).__name__,
            remedy="Install it: pip install 'autosync[transformers]'.",
        ) from None
    return transformers


def _config(transformers: Any, data: dict[str, Any], file: Path) -> Any:
    rest = {name: value for name, value in data.items() if name != "model_type"}
    kind = data["model_type"]
    if (
        not isinstance(kind, str)
        or kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING
    ):
        raise NotSupported(
            f"{file}: transformers {transformers.__version__} has no model type {kind!r}, and "
            "code that comes with a model is not run.",
            thing="model_type",
            value=kind,
            remedy=f"Install a version that has it. {OWN_FUNCTION}",
        )
    try:
        return transformers.AutoConfig.for_model(kind, **rest)
    except Exception as error:  # whatever the library raises over odd values
        raise _refused(file, f"no configuration of {kind!r}: {first_line(error)}", kind) from None


def _model_class(transformers: Any, architecture: str, file: Path) -> Any:
    try:
        found = getattr(transformers, architecture, None)
    except Exception as error:  # a model whose own requirements are missing
        raise NotSupported(
            f"{file}: {architecture} does not load: {first_line(error)}.",
            thing="architectures",
            value=architecture,
            remedy=f"Install what it needs. {OWN_FUNCTION}",
        ) from None
    if not (inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel)):
        raise NotSupported(
            f"{file}: transformers {transformers.__version__} has no model {architecture!r}.",
            thing="architectures",
            value=architecture,
            remedy=f"Install a version that has it. {OWN_FUNCTION}",
        )
    return found


def _inputs(
    model_class: Any, config: Any, batch_size: int, length: int | None, architecture: str
) -> dict[str, torch.Tensor]:
    """A batch of zeros: shapes count. No attention mask, since no position is padding; models
    drop one that hides nothing."""
    first = getattr(model_class, "main_input_name", "input_ids")
    inputs: dict[str, torch.Tensor] = {}
    if first == "input_ids":
        tokens = _length(config, length)
        inputs["input_ids"] = torch.zeros(batch_size, tokens, dtype=torch.long)
    elif first == "pixel_values" and isinstance(getattr(config, "image_size", None), int):
        if length is not None:
            raise InvalidInput(
                f"{architecture} takes images, which have no length in tokens.",
                thing="length",
                value=length,
                remedy="Leave it out.",
            )
        channels = getattr(config, "num_channels", 3)
        inputs["pixel_values"] = torch.zeros(batch_size, channels, *[config.image_size] * 2)
    elif config.model_type == "whisper":  # its encoder halves the steps of a spectrogram
        steps = 2 * config.max_source_positions
        inputs["input_features"] = torch.zeros(batch_size, config.num_mel_bins, steps)
        words = torch.zeros(batch_size, _length(config, length), dtype=torch.long)
        return inputs | _labels(inputs | {"input_ids": words}, batch_size, model_class, config)
    else:
        raise NotSupported(
            f"a batch for {architecture}: no configuration says the shape of {first!r}.",
            thing="architectures",
            value=architecture,
            remedy=f"{OWN_FUNCTION} Its inputs are a batch that the model's processor made.",
        )
    return inputs | _labels(inputs, batch_size, model_class, config)


def _labels(
    inputs: dict[str, torch.Tensor], batch_size: int, model_class: Any, config: Any
) -> dict[str, torch.Tensor]:
    architecture = model_class.__name__
    taken = inspect.signature(model_class.forward).parameters
    classes = torch.zeros(batch_size, dtype=torch.long)
    words = inputs.get("input_ids")
    if words is not None and architecture.endswith((*WORD_LABELS, "ForTokenClassification")):
        return {"labels": words.clone()}
    if words is not None and {"labels", "next_sentence_label"} <= taken.keys():
        return {"labels": words.clone(), "next_sentence_label": classes}
    if architecture.endswith(CLASS_LABELS):
        return {"labels": _class_labels(config, batch_size)}
    if architecture.endswith("ForQuestionAnswering"):
        return {"start_positions": classes, "end_positions": classes.clone()}
    others = [name for name in _with_labels(model_class) if name != architecture]
    instead = f"Name one with known labels: {', '.join(others)}. Or give" if others else "Give"
    raise NotSupported(
        f"a batch for {architecture} has no known labels.",
        thing="architectures",
        value=architecture,
        remedy=OWN_FUNCTION.replace("Give", instead),
    )


def _with_labels(model_class: Any) -> list[str]:
    """The library's models of the same configuration that have known labels."""
    ends = (*WORD_LABELS, *CLASS_LABELS, "ForTokenClassification", "ForQuestionAnswering")
    return [
        name
        for name, found in sorted(vars(sys.modules[model_class.__module__]).items())
        if inspect.isclass(found)
        and getattr(found, "config_class", None) is model_class.config_class
        and name.endswith(ends)
    ]


def _class_labels(config: Any, batch_size: int) -> torch.Tensor:
    """A class for each sample; numbers, one for each label, where the model learns scores (as it
    does of a single label) or which of several labels hold."""
    problem = config.problem_type or ("regression" if config.num_labels == 1 else "")
    if problem in ("regression", "multi_label_classification"):
        return torch.zeros(batch_size, config.num_labels)
    return torch.zeros(batch_size, dtype=torch.long)


def _of_type(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers in the type of the model's parameters; words and classes as they are."""
    return value.to(dtype) if value.is_floating_point() else value


def _length(config: Any, length: int | None) -> int:
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", getattr(text, "max_target_positions", None))
    limit = most if isinstance(most, int) and most > 0 else None
    if length is None:
        return min(USUAL_LENGTH, limit or USUAL_LENGTH)
    if length < 1 or (limit is not None and length > limit):
        raise InvalidInput(
            f"sentences of {length} tokens: the model takes 1 to {limit or 'any number'}.",
            thing="length",
            value=length,
            remedy="Give a length that it takes.",
        )
    return length


def _refused(file: Path, why: str, value: object) -> InvalidInput:
    return InvalidInput(
        f"{file}: {why}.",
        thing="config.json",
        value=value,
        remedy=f"Give the config.json of a model with its architectures. {OWN_FUNCTION}",
    )
