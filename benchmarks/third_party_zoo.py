"""Small configurations of models that others wrote, one of each kind of architecture, and what it
takes to train them for a few steps."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.torchvision_operators import declare_operators

BATCH, TOKENS, WORDS, PIXELS, CLASSES = 4, 16, 96, 32, 10

Batch = tuple[Any, ...] | dict[str, Any]
UNUSED: Mapping[str, Any] = {"find_unused_parameters": True}
"""For models that leave parameters without a gradient, or only some batches use them."""


@dataclass(frozen=True, slots=True)
class ThirdPartyModel:
    """A small configuration of a model that others wrote.

    build: makes it, anew each time. batch: what one rank trains on in one iteration, drawn with a
    generator. loss: as a training script would compute it; None where the model returns it.
    batch_size: in samples, for one rank. ddp: options that torch's DDP needs for it.
    """

    name: str
    library: str
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[..., Tensor] | None = None
    batch_size: int = BATCH
    ddp: Mapping[str, Any] = field(default_factory=dict)


def words(generator: torch.Generator, tokens: int = TOKENS, batch: int = BATCH) -> Tensor:
    return torch.randint(3, WORDS, (batch, tokens), generator=generator)


def images(generator: torch.Generator, pixels: int = PIXELS) -> Tensor:
    return torch.randn(BATCH, 3, pixels, pixels, generator=generator)


def classes(generator: torch.Generator, count: int = CLASSES) -> Tensor:
    return torch.randint(0, count, (BATCH,), generator=generator)


def sentences(generator: torch.Generator, tokens: int = TOKENS) -> Batch:
    """Text with the words to be predicted, the last two of each sentence padding."""
    mask = torch.ones(BATCH, tokens, dtype=torch.long)
    mask[:, -2:] = 0
    text = words(generator, tokens)
    labels = text.masked_fill(mask == 0, -100)
    return {"input_ids": text, "attention_mask": mask, "labels": labels}


def pictures(generator: torch.Generator, pixels: int = PIXELS) -> Batch:
    return {"pixel_values": images(generator, pixels), "labels": classes(generator)}


def labelled(generator: torch.Generator, pixels: int = PIXELS) -> Batch:
    """Positional, as torchvision and timm train."""
    return images(generator, pixels), classes(generator)


def cross_entropy(outputs: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def plain_words(generator: torch.Generator) -> Batch:
    """Without a mask."""
    text = words(generator)
    return {"input_ids": text, "labels": text}


def only_pictures(generator: torch.Generator) -> Batch:
    return {"pixel_values": images(generator)}


def pictures_with_words(generator: torch.Generator) -> Batch:
    mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
    pixels = images(generator)
    text = words(generator)
    return {"input_ids": text, "pixel_values": pixels, "attention_mask": mask, "return_loss": True}


def speech(generator: torch.Generator) -> Batch:
    return {
        "input_values": torch.randn(BATCH, 2000, generator=generator),
        "labels": torch.randint(1, 30, (BATCH, 3), generator=generator),
    }


def spectrogram(generator: torch.Generator) -> Batch:
    features = torch.randn(BATCH, 16, 32, generator=generator)
    return {"input_features": features, "labels": words(generator)}


def boxes(generator: torch.Generator) -> Batch:
    corner = torch.rand(2, 2, generator=generator) * 20
    target = {
        "boxes": torch.cat([corner, corner + 20], 1),
        "labels": torch.randint(1, CLASSES, (2,), generator=generator),
    }
    seen = [torch.rand(3, 64, 64, generator=generator) for _ in range(2)]
    return {"images": seen, "targets": [target, target]}


def sum_of_losses(outputs: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(outputs.values())).sum()


LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
TEXT: dict[str, Any] = {**LAYERS, "vocab_size": WORDS, "max_position_embeddings": 64}
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER: dict[str, Any] = {**TEXT, **IDS, "num_key_value_heads": 2}
STATES: dict[str, Any] = {**TEXT, **IDS, "state_size": 8}
GPT2: dict[str, Any] = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, **IDS}
SEQUENCES: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 32,
    "decoder_start_token_id": 1,
    **IDS,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
}


def _transformers(
    name: str,
    architecture: str,
    options: Mapping[str, Any],
    batch: Callable[[torch.Generator], Batch] = sentences,
    ddp: Mapping[str, Any] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
) -> ThirdPartyModel:
    """architecture: the class. options: of its configuration. checkpoint: of activations."""

    def build() -> nn.Module:
        model_class = getattr(importlib.import_module("transformers"), architecture)
        model: Any = model_class(model_class.config_class(**options))
        if checkpoint is not None:
            model.gradient_checkpointing_enable(checkpoint)
        made: nn.Module = model.train()
        return made

    return ThirdPartyModel(name, "transformers", build, batch, ddp=ddp or {})


def text_models() -> list[ThirdPartyModel]:
    llama, mixtral = "LlamaForCausalLM", "MixtralForCausalLM"
    deberta = {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    xlnet = {"vocab_size": WORDS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
    experts = {**DECODER, "num_local_experts": 4}
    mamba2 = {**STATES, "num_heads": 8, "head_dim": 8, "chunk_size": 8}
    rwkv = {**TEXT, **IDS, "attention_hidden_size": 32, "context_length": 32}
    t5 = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}
    t5 |= {"num_heads": 4, "decoder_start_token_id": 0}
    bart = {**SEQUENCES, "max_position_embeddings": 64}
    eager = {"attn_implementation": "eager"}
    one_by_one = {**experts, "experts_implementation": "eager"}
    return [
        _transformers("BERT", "BertForMaskedLM", TEXT),
        _transformers("ALBERT", "AlbertForMaskedLM", {**TEXT, "embedding_size": 16}),
        _transformers("DeBERTa", "DebertaForMaskedLM", deberta),
        _transformers("ModernBERT", "ModernBertForMaskedLM", {**TEXT, **IDS}),
        _transformers("XLNet", "XLNetLMHeadModel", xlnet, ddp=UNUSED),
        _transformers(
            *("Longformer", "LongformerForMaskedLM", {**TEXT, "attention_window": 8}),
            partial(sentences, tokens=32),
            UNUSED,
        ),
        _transformers("GPT-2", "GPT2LMHeadModel", {**GPT2, "n_positions": 64}),
        _transformers("Llama", llama, DECODER),
        _transformers("Llama, eager attention", llama, DECODER | eager),
        _transformers("Llama, checkpointed", llama, DECODER, checkpoint={"use_reentrant": False}),
        _transformers(
            *("Llama, checkpointed (reentrant)", llama, DECODER), checkpoint={"use_reentrant": True}
        ),
        _transformers("Mistral", "MistralForCausalLM", {**DECODER, "sliding_window": 8}),
        _transformers("Mixtral", mixtral, experts),
        _transformers("Mixtral, experts one by one", mixtral, one_by_one, ddp=UNUSED),
        _transformers("Qwen3", "Qwen3ForCausalLM", {**DECODER, "head_dim": 8}),
        _transformers("Gemma 2", "Gemma2ForCausalLM", {**DECODER, "head_dim": 8}),
        _transformers("BLOOM", "BloomForCausalLM", {**GPT2, "hidden_size": 32}),
        _transformers("Mamba", "MambaForCausalLM", STATES, plain_words),
        _transformers("Mamba 2", "Mamba2ForCausalLM", mamba2, plain_words),
        _transformers("RWKV", "RwkvForCausalLM", rwkv, plain_words),
        _transformers("T5", "T5ForConditionalGeneration", t5),
        _transformers("BART", "BartForConditionalGeneration", bart),
    ]


def image_and_sound_models() -> list[ThirdPartyModel]:
    patches = {**LAYERS, "image_size": PIXELS, "patch_size": 8}
    classified = {**patches, "num_labels": CLASSES}
    swin: dict[str, Any] = {"image_size": PIXELS, "num_labels": CLASSES, "patch_size": 4}
    swin |= {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    mae = {**patches, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1}
    mae |= {"decoder_num_attention_heads": 2, "decoder_intermediate_size": 24}
    text = {**TEXT, "max_position_embeddings": TOKENS, "eos_token_id": 2}
    clip = {"text_config": text, "vision_config": patches, "projection_dim": 16}
    wave: dict[str, Any] = {**LAYERS, "vocab_size": 32, "mask_time_length": 2, "layerdrop": 0.0}
    wave |= {"conv_dim": [16] * 3, "conv_stride": [5, 4, 4], "conv_kernel": [10, 8, 4]}
    wave |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
    whisper = {**SEQUENCES, "num_mel_bins": 16}
    whisper |= {"max_source_positions": 16, "max_target_positions": 32}
    return [
        _transformers("ViT", "ViTForImageClassification", classified, pictures),
        _transformers("DINOv2", "Dinov2ForImageClassification", classified, pictures, UNUSED),
        _transformers("Swin", "SwinForImageClassification", swin, pictures),
        _transformers("ViT-MAE", "ViTMAEForPreTraining", mae, only_pictures),
        _transformers("CLIP", "CLIPModel", clip, pictures_with_words),
        _transformers("Wav2Vec2", "Wav2Vec2ForCTC", wave, speech),
        _transformers("Whisper", "WhisperForConditionalGeneration", whisper, spectrogram),
    ]


def _torchvision(
    name: str,
    factory: str,
    options: Mapping[str, Any] | None = None,
    batch: Callable[[torch.Generator], Batch] = labelled,
    loss: Callable[..., Tensor] = cross_entropy,
    batch_size: int = BATCH,
) -> ThirdPartyModel:
    def build() -> nn.Module:
        package, _, function = f"torchvision.models.{factory}".rpartition(".")
        made = getattr(importlib.import_module(package), function)
        model: nn.Module = made(num_classes=CLASSES, **options or {})
        return model.train()

    return ThirdPartyModel(name, "torchvision", build, batch, loss, batch_size)


def _timm(
    name: str,
    options: Mapping[str, Any] | None = None,
    batch: Callable[[torch.Generator], Batch] = labelled,
) -> ThirdPartyModel:
    def build() -> nn.Module:
        timm = importlib.import_module("timm")
        model: nn.Module = timm.create_model(name, num_classes=CLASSES, **options or {})
        return model.train()

    return ThirdPartyModel(name, "timm", build, batch, cross_entropy)


def vision_library_models() -> list[ThirdPartyModel]:
    dense = {"growth_rate": 8, "block_config": (2, 2), "num_init_features": 16}
    untrained = {"weights": None, "weights_backbone": None}
    detector = "detection.ssdlite320_mobilenet_v3_large"
    tiny = {"num_heads": 4, "img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2}
    atto = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32), "drop_path_rate": 0.1}
    return [
        _torchvision("ResNet-18", "resnet18"),
        _torchvision("ShuffleNetV2", "shufflenet_v2_x0_5"),
        _torchvision("EfficientNet-B0", "efficientnet_b0"),
        _torchvision("DenseNet, checkpointed", "DenseNet", {**dense, "memory_efficient": True}),
        _torchvision("SSDlite", detector, untrained, boxes, sum_of_losses, 2),
        _timm("resnet10t"),
        _timm("vit_tiny_patch16_224", tiny),
        _timm("convnext_atto", atto),
        _timm("mobilenetv3_small_050", batch=partial(labelled, pixels=64)),
        _timm("regnetx_002"),
    ]


@cache
def all_models() -> dict[str, ThirdPartyModel]:
    """By name."""
    declare_operators()
    every = (*text_models(), *image_and_sound_models(), *vision_library_models())
    return {model.name: model for model in every}
