"""Models from a config.json: built without weights, network or code of others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from autosync.errors import AutosyncError, InvalidInput, NotFound, NotSupported
from autosync.importing import import_module
from autosync.importing.transformers_config import load_transformers_config
from tests.autosync.importing.graph_contract import assert_graph_contract
from tests.torchvision_operators import declare_operators

declare_operators()  # transformers imports torchvision where it is installed
transformers = pytest.importorskip("transformers")

BATCH = 2
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": {"model_type": "bert", **SIZES},
    "BertForPreTraining": {"model_type": "bert", **SIZES},
    "BertForSequenceClassification": {"model_type": "bert", **SIZES},
    "BertForTokenClassification": {"model_type": "bert", **SIZES},
    "BertForQuestionAnswering": {"model_type": "bert", **SIZES},
    "LlamaForCausalLM": {"model_type": "llama", "dtype": "bfloat16", **SIZES},
    "GPT2LMHeadModel": {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2},
    "ViTForImageClassification": {"model_type": "vit", **SIZES, "image_size": 32, "patch_size": 8},
    "T5ForConditionalGeneration": {
        "model_type": "t5",
        "vocab_size": 64,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 24,
        "num_layers": 1,
        "num_heads": 2,
        "decoder_start_token_id": 0,
    },
    "WhisperForConditionalGeneration": {
        "model_type": "whisper",
        "vocab_size": 64,
        "d_model": 16,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1),
        "decoder_start_token_id": 2,
        "max_source_positions": 20,
    },
}


def written(folder: Path, architecture: str, **more: Any) -> Path:
    data = {"architectures": [architecture], **CONFIGS.get(architecture, {}), **more}
    (folder / "config.json").write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize("architecture", CONFIGS)
def test_each_architecture_has_the_graph_of_its_class(architecture: str, tmp_path: Path) -> None:
    length = None if "ViT" in architecture else 8
    target = load_transformers_config(written(tmp_path, architecture), BATCH, length)
    assert {p.device.type for p in target.module.parameters()} == {"meta"}
    assert type(target.module).__name__ == architecture
    graph = import_module(
        target.module, target.example_inputs, target.loss, name="hf", batch_size=BATCH
    )
    assert_graph_contract(graph, BATCH)
    kinds = {variable.dtype for variable in graph.variables}
    assert kinds == {"bfloat16" if "Llama" in architecture else "float32"}


@pytest.mark.parametrize(
    ("architecture", "problem", "labels"),
    [
        ("BertForSequenceClassification", None, 1),
        ("BertForSequenceClassification", "regression", 3),
        ("ViTForImageClassification", "multi_label_classification", 3),
    ],
)
def test_scores_and_several_labels_a_sample_are_numbers(
    architecture: str, problem: str | None, labels: int, tmp_path: Path
) -> None:
    """A cross-encoder has one label: its score."""
    names = {str(each): f"label {each}" for each in range(labels)}
    folder = written(tmp_path, architecture, id2label=names, problem_type=problem)
    length = None if "ViT" in architecture else 8
    target = load_transformers_config(folder, BATCH, length, allocate=True)
    assert isinstance(target.example_inputs, dict)
    assert target.example_inputs["labels"].shape == (BATCH, labels)
    target.module(**target.example_inputs).loss.backward()


def test_sounds_have_the_type_of_the_parameters(tmp_path: Path) -> None:
    """As of Whisper large-v3, whose configuration states 16 bits."""
    folder = written(tmp_path, "WhisperForConditionalGeneration", dtype="bfloat16")
    target = load_transformers_config(folder, BATCH, 8)
    assert isinstance(target.example_inputs, dict)
    assert target.example_inputs["input_features"].dtype == torch.bfloat16
    assert target.example_inputs["labels"].dtype == torch.long
    graph = import_module(target.module, target.example_inputs, None, name="hf", batch_size=BATCH)
    assert {variable.dtype for variable in graph.variables} == {"bfloat16"}


def test_a_size_per_layer_is_no_number_of_layers(tmp_path: Path) -> None:
    """As Gemma 3n and Gemma 4 state that of a vocabulary."""
    file = written(tmp_path, "LlamaForCausalLM", vocab_size_per_layer_input=262_144)
    module = load_transformers_config(file, BATCH, 8).module
    assert type(module).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "model_type", "why", "instead"),
    [
        ("Wav2Vec2ForCTC", "wav2vec2", "no configuration says the shape of 'input_values'", ""),
        ("DetrForObjectDetection", "detr", "the shape of 'pixel_values'", ""),
        ("WhisperModel", "whisper", "no known labels", "WhisperForConditionalGeneration"),
        ("ViTForMaskedImageModeling", "vit", "no known labels", "ViTForImageClassification"),
        ("LlamaModel", "llama", "no known labels", "LlamaForCausalLM"),
    ],
)
def test_a_refusal_names_what_the_model_type_has(
    architecture: str, model_type: str, why: str, instead: str, tmp_path: Path
) -> None:
    with pytest.raises(NotSupported, match=why) as caught:
        load_transformers_config(written(tmp_path, architecture, model_type=model_type), BATCH)
    assert caught.value.remedy is not None
    assert "package.module:function" in caught.value.remedy
    assert instead in caught.value.remedy
    assert "Bert" not in str(caught.value)


def test_the_usual_length_is_what_the_model_takes(tmp_path: Path) -> None:
    file = written(tmp_path, "BertForMaskedLM") / "config.json"
    target = load_transformers_config(file, BATCH)
    assert isinstance(target.example_inputs, dict)
    assert target.example_inputs["input_ids"].shape == (BATCH, 32)
    with pytest.raises(InvalidInput, match="sentences of 33 tokens: the model takes 1 to 32"):
        load_transformers_config(file, BATCH, 33)
    images = written(tmp_path, "ViTForImageClassification")
    with pytest.raises(InvalidInput, match="takes images, which have no length"):
        load_transformers_config(images, BATCH, 8)


def test_code_of_others_is_neither_fetched_nor_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it asked for something that is not there")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("transformers.dynamic_module_utils.get_class_from_dynamic_module", refuse)
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('executed')\n")
    code = {"AutoConfig": "modeling_evil.Config", "AutoModelForMaskedLM": "modeling_evil.Model"}
    hostile = {"auto_map": code, "_attn_implementation": "someone/kernel"}
    hostile |= {"attn_implementation": "someone/kernel", "quantization_config": {"a": 1}}
    folder = written(tmp_path, "BertForMaskedLM", **hostile)
    assert type(load_transformers_config(folder, 1, 8).module).__name__ == "BertForMaskedLM"
    with pytest.raises(NotSupported, match="no model type 'evil'"):
        load_transformers_config(written(tmp_path, "EvilModel", model_type="evil", **hostile), 1)


def test_images_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "ViTForImageClassification", image_size=10_000_000)
    with pytest.raises(InvalidInput, match="ViTForImageClassification cannot be built") as caught:
        load_transformers_config(file, BATCH)
    assert caught.value.remedy


MASKED = '{"architectures": ["BertForMaskedLM"]'


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        (None, NotFound, "cannot read"),
        ("{", InvalidInput, "it is no JSON"),
        ("[" * 100_000, InvalidInput, "it is no JSON"),
        ('{"model_type": "bert", "a": ' + '{"a": ' * 700 + "1" + "}" * 701, InvalidInput, ""),
        ("[]", InvalidInput, "no field 'model_type'"),
        ('{"model_type": "bert"}', InvalidInput, "names no architecture"),
        ('{"model_type": "bert", "architectures": ["BertModel"]}', NotSupported, "no known labels"),
        ('{"model_type": "bert", "architectures": ["os"]}', NotSupported, "has no model 'os'"),
        ('{"model_type": "bert", "architectures": ["BertConfig"]}', NotSupported, "has no model"),
        (f'{MASKED}, "model_type": "bert", "hidden_size": "x"}}', InvalidInput, ""),
        (
            f'{MASKED}, "model_type": "bert", "num_hidden_layers": 1000000000}}',
            InvalidInput,
            "num_hidden_layers is 1000000000",
        ),
        (f'{MASKED}, "model_type": ["bert"]}}', NotSupported, "no model type ['bert']"),
        (" " * 4_000_001, InvalidInput, "more than 4000000"),
    ],
)
def test_bad_files_are_refused_by_name(
    text: str | None, kind: type[AutosyncError], why: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(kind) as caught:
        load_transformers_config(tmp_path, BATCH)
    assert why in str(caught.value)
    assert caught.value.remedy
