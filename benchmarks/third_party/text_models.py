"""Language models of transformers, at small configurations."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.third_party.zoo import (
    STATIC,
    TOKENS,
    UNUSED,
    WORDS,
    Batch,
    ThirdPartyModel,
    sentences,
    words,
)

SIZE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
DECODER: dict[str, Any] = {**SIZE, **IDS, "num_key_value_heads": 2}


def _config(name: str, **options: Any) -> Any:
    return getattr(transformers, name)(**options)


def _model(
    kind: str, config: str, prepare: Callable[[nn.Module], Any] | None = None, **options: Any
) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model: nn.Module = getattr(transformers, kind)(_config(config, **options))
        if prepare:
            prepare(model)
        return model.train()

    return build


def _encoder(
    name: str, kind: str, config: str, ddp: Mapping[str, Any] | None = None, **options: Any
) -> ThirdPartyModel:
    build = _model(kind, config, **options)
    return ThirdPartyModel(name, "transformers", build, sentences, ddp=ddp or {})


def _decoder(
    name: str,
    kind: str,
    config: str,
    prepare: Callable[[nn.Module], Any] | None = None,
    ddp: Mapping[str, Any] | None = None,
    **options: Any,
) -> ThirdPartyModel:
    build = _model(kind, config, prepare, **options)
    return ThirdPartyModel(name, "transformers", build, sentences, ddp=ddp or {})


def _checkpointed(reentrant: bool) -> Callable[[nn.Module], Any]:
    def enable(model: Any) -> None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})

    return enable


def _plain(generator: torch.Generator) -> Batch:
    """Without a mask."""
    text = words(generator)
    return {"input_ids": text, "labels": text}


def _long(generator: torch.Generator) -> Batch:
    return sentences(generator, 32)


def _encoders() -> list[ThirdPartyModel]:
    deberta: dict[str, Any] = {**SIZE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    return [
        _encoder("BERT", "BertForMaskedLM", "BertConfig", **SIZE),
        _encoder("RoBERTa", "RobertaForMaskedLM", "RobertaConfig", **SIZE),
        _encoder(
            "DistilBERT",
            "DistilBertForMaskedLM",
            "DistilBertConfig",
            vocab_size=WORDS,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=48,
        ),
        _encoder("ALBERT", "AlbertForMaskedLM", "AlbertConfig", embedding_size=16, **SIZE),
        _encoder("ELECTRA", "ElectraForMaskedLM", "ElectraConfig", embedding_size=16, **SIZE),
        _encoder("DeBERTa", "DebertaForMaskedLM", "DebertaConfig", **deberta),
        _encoder("DeBERTa-v2", "DebertaV2ForMaskedLM", "DebertaV2Config", **deberta),
        _encoder("MPNet", "MPNetForMaskedLM", "MPNetConfig", **SIZE),
        _encoder("ModernBERT", "ModernBertForMaskedLM", "ModernBertConfig", **SIZE, **IDS),
        _encoder(
            "XLNet",
            "XLNetLMHeadModel",
            "XLNetConfig",
            ddp=UNUSED,
            vocab_size=WORDS,
            d_model=32,
            n_layer=2,
            n_head=4,
            d_inner=48,
        ),
        ThirdPartyModel(
            "Longformer",
            "transformers",
            _model("LongformerForMaskedLM", "LongformerConfig", attention_window=8, **SIZE),
            _long,
            ddp=UNUSED,
        ),
        ThirdPartyModel(
            "BigBird",
            "transformers",
            _model("BigBirdForMaskedLM", "BigBirdConfig", attention_type="original_full", **SIZE),
            _long,
            ddp=UNUSED,
        ),
        ThirdPartyModel(
            "Reformer",
            "transformers",
            _model(
                "ReformerForMaskedLM",
                "ReformerConfig",
                vocab_size=WORDS,
                hidden_size=32,
                attn_layers=["local", "lsh"],
                num_attention_heads=2,
                attention_head_size=16,
                feed_forward_size=48,
                axial_pos_shape=[4, 8],
                axial_pos_embds_dim=[16, 16],
                local_attn_chunk_length=8,
                lsh_attn_chunk_length=8,
                num_buckets=4,
                max_position_embeddings=32,
                is_decoder=False,
                hash_seed=0,  # it draws its own seeds for hashes and dropout, other ones each run
                hidden_dropout_prob=0.0,
                local_attention_probs_dropout_prob=0.0,
                lsh_attention_probs_dropout_prob=0.0,
            ),
            _long,
            ddp=STATIC,
        ),
        ThirdPartyModel(
            "Perceiver",
            "transformers",
            _model(
                "PerceiverForMaskedLM",
                "PerceiverConfig",
                vocab_size=WORDS,
                num_latents=8,
                d_latents=32,
                d_model=32,
                num_blocks=1,
                num_self_attends_per_block=2,
                num_self_attention_heads=4,
                num_cross_attention_heads=4,
                max_position_embeddings=TOKENS,
            ),
            _perceived,
        ),
    ]


def _perceived(generator: torch.Generator) -> Batch:
    batch = sentences(generator)
    assert isinstance(batch, dict)
    return {"inputs": batch.pop("input_ids"), **batch}


def _decoders() -> list[ThirdPartyModel]:
    bloom: dict[str, Any] = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "n_layer": 2,
        "n_head": 4,
        **IDS,
    }
    gpt: dict[str, Any] = {
        "vocab_size": WORDS,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        **IDS,
    }
    gemma: dict[str, Any] = {**DECODER, "head_dim": 8}
    llama = ("LlamaForCausalLM", "LlamaConfig")
    return [
        _decoder("GPT-2", "GPT2LMHeadModel", "GPT2Config", **gpt),
        _decoder("GPT-J", "GPTJForCausalLM", "GPTJConfig", **gpt, rotary_dim=4),
        _decoder("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", **SIZE, **IDS),
        _decoder(
            "OPT",
            "OPTForCausalLM",
            "OPTConfig",
            **{**SIZE, **IDS, "ffn_dim": 48, "word_embed_proj_dim": 32},
        ),
        _decoder("Llama", *llama, **DECODER),
        _decoder("Llama, eager attention", *llama, attn_implementation="eager", **DECODER),
        _decoder("Llama, checkpointed", *llama, _checkpointed(False), **DECODER),
        _decoder("Llama, checkpointed (reentrant)", *llama, _checkpointed(True), **DECODER),
        _decoder("Mistral", "MistralForCausalLM", "MistralConfig", sliding_window=8, **DECODER),
        _decoder("Mixtral", "MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **DECODER),
        _decoder(
            "Mixtral, experts one by one",
            "MixtralForCausalLM",
            "MixtralConfig",
            ddp=UNUSED,
            num_local_experts=4,
            experts_implementation="eager",
            **DECODER,
        ),
        _decoder("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", **DECODER),
        _decoder("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", head_dim=8, **DECODER),
        _decoder(
            "Qwen2-MoE",
            "Qwen2MoeForCausalLM",
            "Qwen2MoeConfig",
            shared_expert_intermediate_size=24,
            **DECODER,
            **EXPERTS,
        ),
        _decoder(
            "Qwen3-MoE",
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            output_router_logits=True,
            **DECODER,
            **EXPERTS,
        ),
        _decoder("Gemma", "GemmaForCausalLM", "GemmaConfig", **gemma),
        _decoder("Gemma 2", "Gemma2ForCausalLM", "Gemma2Config", **gemma),
        _decoder("Phi", "PhiForCausalLM", "PhiConfig", **DECODER),
        _decoder("Falcon", "FalconForCausalLM", "FalconConfig", **{**SIZE, **IDS, "alibi": False}),
        _decoder("BLOOM", "BloomForCausalLM", "BloomConfig", **bloom),
        _decoder("OLMo", "OlmoForCausalLM", "OlmoConfig", **DECODER),
        ThirdPartyModel(
            "Mamba",
            "transformers",
            _model("MambaForCausalLM", "MambaConfig", **{**SIZE, "state_size": 8}, **IDS),
            _plain,
        ),
        ThirdPartyModel(
            "Mamba 2",
            "transformers",
            _model(
                "Mamba2ForCausalLM",
                "Mamba2Config",
                **{**SIZE, **IDS, "state_size": 8, "num_heads": 8, "head_dim": 8, "chunk_size": 8},
            ),
            _plain,
        ),
        ThirdPartyModel(
            "RWKV",
            "transformers",
            _model(
                "RwkvForCausalLM",
                "RwkvConfig",
                **{**SIZE, **IDS, "attention_hidden_size": 32, "context_length": 32},
            ),
            _plain,
        ),
    ]


def _sequence_to_sequence() -> list[ThirdPartyModel]:
    layers: dict[str, Any] = {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
    }
    bart: dict[str, Any] = {"vocab_size": WORDS, "d_model": 32, **IDS, **layers}
    bart["max_position_embeddings"] = 64
    bart["decoder_start_token_id"] = 2
    t5: dict[str, Any] = {
        "vocab_size": WORDS,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
    }
    t5 |= {"num_heads": 4, "decoder_start_token_id": 0}
    return [
        _encoder("T5", "T5ForConditionalGeneration", "T5Config", **t5),
        _encoder("BART", "BartForConditionalGeneration", "BartConfig", **bart),
        _encoder("Pegasus", "PegasusForConditionalGeneration", "PegasusConfig", **bart),
        _encoder("Marian", "MarianMTModel", "MarianConfig", **bart),
        _encoder("mBART", "MBartForConditionalGeneration", "MBartConfig", **bart),
    ]


def text_models() -> list[ThirdPartyModel]:
    return [*_encoders(), *_decoders(), *_sequence_to_sequence()]
