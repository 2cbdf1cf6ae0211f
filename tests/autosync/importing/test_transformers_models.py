"""Models of transformers as their users train them: batches of a tokenizer, labels, own losses."""

from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import NotTraceable
from autosync.graph import ModelGraph
from autosync.importing import import_module
from tests.torchvision_operators import declare_operators

declare_operators()  # transformers imports torchvision where it is installed
transformers = pytest.importorskip("transformers")

SIZE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
DECODER = {**SIZE, "num_key_value_heads": 1, "pad_token_id": 0}


def batch() -> Any:
    words = torch.randint(1, 64, (2, 8))
    mask = torch.ones_like(words)
    mask[:, -1] = 0
    return transformers.BatchEncoding({"input_ids": words, "attention_mask": mask, "labels": words})


def imported(model: nn.Module, inputs: Any = None, values: bool = False) -> ModelGraph:
    given = batch() if inputs is None else inputs
    return import_module(model.train(), given, None, name="hf", batch_size=2, values=values)


def llama(**options: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER, **options))


def test_an_encoder_with_a_mask() -> None:
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZE))
    graph = imported(model)
    tied = next(i for i, v in enumerate(graph.variables) if "word_embeddings" in v.name)
    assert len(graph.consumers()[tied]) == 2
    assert graph.gradient_order[-1] == tied
    assert [v.name for v in graph.variables] == [name for name, _ in model.named_parameters()]


def test_a_decoder_with_its_cache_and_either_attention() -> None:
    for attention in ("sdpa", "eager"):
        model = llama(attn_implementation=attention)
        assert model.config.use_cache
        graph = imported(model)
        assert len(graph.variables) == 21


# of the name that training scripts use
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_decoder(reentrant: bool) -> None:
    model = llama(use_cache=False)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    graph = imported(model)
    assert graph.variables[graph.gradient_order[-1]].name == "model.embed_tokens.weight"


def mamba(**options: Any) -> Any:
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    return transformers.MambaForCausalLM(transformers.MambaConfig(**sizes, **options))


def test_a_selective_scan_is_one_operation_whatever_the_number_of_tokens() -> None:
    graphs = []
    for tokens in (8, 64):
        words = torch.zeros(2, tokens, dtype=torch.long)
        graphs.append(imported(mamba(), {"input_ids": words, "labels": words}))
    assert [o.name for o in graphs[0].operations] == [o.name for o in graphs[1].operations]
    scan, _ = (o for o in graphs[1].operations if o.type == "selective_scan")
    channels, state = 32, 4
    assert scan.forward_flops == 2 * 2 * 64 * channels * state
    assert scan.backward_flops == 2 * scan.forward_flops
    assert scan.output_bytes == 4 * 2 * channels * (64 + state)
    assert max(o.output_bytes for o in graphs[1].operations) <= 4 * 2 * 64 * 64  # no states
    assert {v.name for v in graphs[1].variables} == {n for n, _ in mamba().named_parameters()}


def test_a_model_with_selective_scans_runs_as_before_behind_a_recording() -> None:
    model, words = mamba().eval(), torch.zeros(2, 8, dtype=torch.long)
    before = model(words).logits
    imported(model.train(), {"input_ids": words, "labels": words})
    assert torch.equal(model.eval()(words).logits, before)


def test_experts_of_a_mixture() -> None:
    config = transformers.MixtralConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2)
    graph = imported(transformers.MixtralForCausalLM(config))
    experts = [o for o in graph.operations if o.type == "_grouped_mm"]
    rows, width, inner = 2 * 8 * 2, 16, 24
    flops = 2 * rows * width * inner
    assert [o.forward_flops for o in experts[:2]] == [2 * flops, flops]
    assert all(o.backward_flops == 2 * o.forward_flops for o in experts)


def test_experts_one_by_one_need_values() -> None:
    config = transformers.MixtralConfig(**DECODER, num_local_experts=2)
    config._experts_implementation = "eager"
    model = transformers.MixtralForCausalLM(config)
    with pytest.raises(NotTraceable, match=r"modeling_mixtral\.py:\d+ in forward") as caught:
        imported(model)
    assert "shape depends on data" in caught.value.message
    assert len(imported(model, values=True).variables) == 21


def test_an_encoder_with_a_decoder() -> None:
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2
    )
    config.decoder_start_token_id = 0
    graph = imported(transformers.T5ForConditionalGeneration(config))
    assert graph.variables[graph.gradient_order[-1]].name == "shared.weight"
