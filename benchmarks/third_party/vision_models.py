"""Models of transformers for images, sound and series, at small configurations."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.third_party.zoo import (
    BATCH,
    CLASSES,
    PIXELS,
    TOKENS,
    UNUSED,
    WORDS,
    Batch,
    ThirdPartyModel,
    classes,
    images,
    pictures,
    words,
)

LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
PATCHES: dict[str, Any] = {**LAYERS, "image_size": PIXELS, "patch_size": 8, "num_labels": CLASSES}


def _model(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        made = getattr(transformers, config)(**options)
        model: nn.Module = getattr(transformers, kind)(made)
        return model.train()

    return build


def _vision(
    name: str, kind: str, config: str, ddp: Mapping[str, Any] | None = None, **options: Any
) -> ThirdPartyModel:
    build = _model(kind, config, **options)
    return ThirdPartyModel(name, "transformers", build, pictures, ddp=ddp or {})


def _segments(generator: torch.Generator) -> Batch:
    labels = torch.randint(0, CLASSES, (BATCH, PIXELS, PIXELS), generator=generator)
    return {"pixel_values": images(generator), "labels": labels}


def _pairs(generator: torch.Generator) -> Batch:
    return {
        "input_ids": words(generator),
        "pixel_values": images(generator),
        "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.long),
        "return_loss": True,
    }


def _boxes(generator: torch.Generator) -> Batch:
    labels = [
        {
            "class_labels": torch.randint(0, CLASSES, (2,), generator=generator),
            "boxes": torch.rand(2, 4, generator=generator) * 0.4 + 0.1,
        }
        for _ in range(BATCH)
    ]
    return {"pixel_values": images(generator, 64), "labels": labels}


def _only_pictures(generator: torch.Generator) -> Batch:
    return {"pixel_values": images(generator)}


def _speech(generator: torch.Generator) -> Batch:
    return {
        "input_values": torch.randn(BATCH, 2000, generator=generator),
        "labels": torch.randint(1, 30, (BATCH, 3), generator=generator),
    }


def _spectrogram(generator: torch.Generator) -> Batch:
    return {
        "input_features": torch.randn(BATCH, 16, 32, generator=generator),
        "labels": words(generator),
    }


def _spectrum(generator: torch.Generator) -> Batch:
    return {
        "input_values": torch.randn(BATCH, 32, 16, generator=generator),
        "labels": classes(generator),
    }


def _series(generator: torch.Generator) -> Batch:
    return {
        "past_values": torch.randn(BATCH, 32, 3, generator=generator),
        "future_values": torch.randn(BATCH, 8, 3, generator=generator),
    }


def vision_models() -> list[ThirdPartyModel]:
    stages: dict[str, Any] = {"image_size": PIXELS, "num_labels": CLASSES}
    return [
        _vision("ViT", "ViTForImageClassification", "ViTConfig", **PATCHES),
        _vision("DeiT", "DeiTForImageClassification", "DeiTConfig", **PATCHES),
        _vision("BEiT", "BeitForImageClassification", "BeitConfig", **PATCHES),
        _vision("DINOv2", "Dinov2ForImageClassification", "Dinov2Config", ddp=UNUSED, **PATCHES),
        _vision(
            "Swin",
            "SwinForImageClassification",
            "SwinConfig",
            **{**stages, "patch_size": 4, "embed_dim": 16, "depths": [2, 2]},
            num_heads=[2, 4],
            window_size=4,
        ),
        _vision(
            "ConvNeXt",
            "ConvNextForImageClassification",
            "ConvNextConfig",
            **{**stages, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]},
            drop_path_rate=0.1,
        ),
        _vision(
            "ResNet",
            "ResNetForImageClassification",
            "ResNetConfig",
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 2],
            num_labels=CLASSES,
            layer_type="basic",
        ),
        ThirdPartyModel(
            "SegFormer",
            "transformers",
            _model(
                "SegformerForSemanticSegmentation",
                "SegformerConfig",
                hidden_sizes=[8, 16, 24, 32],
                depths=[1, 1, 1, 1],
                num_attention_heads=[1, 2, 2, 4],
                decoder_hidden_size=16,
                num_labels=CLASSES,
            ),
            _segments,
        ),
        ThirdPartyModel(
            "ViT-MAE",
            "transformers",
            _model(
                "ViTMAEForPreTraining",
                "ViTMAEConfig",
                **{**LAYERS, "image_size": PIXELS, "patch_size": 8},
                decoder_hidden_size=16,
                decoder_num_hidden_layers=1,
                decoder_num_attention_heads=2,
                decoder_intermediate_size=24,
            ),
            _only_pictures,
        ),
        ThirdPartyModel("CLIP", "transformers", _clip, _pairs),
        ThirdPartyModel("YOLOS", "transformers", _yolos, _boxes),
    ]


def _clip() -> nn.Module:
    text: dict[str, Any] = {
        **LAYERS,
        "vocab_size": WORDS,
        "max_position_embeddings": TOKENS,
        "eos_token_id": 2,
    }
    seen: dict[str, Any] = {**LAYERS, "image_size": PIXELS, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=seen, projection_dim=16)
    model: nn.Module = transformers.CLIPModel(config)
    return model.train()


def _yolos() -> nn.Module:
    config = transformers.YolosConfig(
        **{**LAYERS, "image_size": [64, 64], "patch_size": 16, "num_labels": CLASSES},
        num_detection_tokens=5,
    )
    model: nn.Module = transformers.YolosForObjectDetection(config)
    return model.train()


def sound_models() -> list[ThirdPartyModel]:
    speech: dict[str, Any] = {
        **LAYERS,
        "vocab_size": 32,
        "conv_dim": [16, 16, 16],
        "conv_stride": [5, 4, 4],
        "conv_kernel": [10, 8, 4],
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4,
        "mask_time_length": 2,
        "layerdrop": 0.0,
    }
    return [
        ThirdPartyModel(
            "Wav2Vec2",
            "transformers",
            _model("Wav2Vec2ForCTC", "Wav2Vec2Config", **speech),
            _speech,
        ),
        ThirdPartyModel(
            "HuBERT", "transformers", _model("HubertForCTC", "HubertConfig", **speech), _speech
        ),
        ThirdPartyModel(
            "Whisper",
            "transformers",
            _model(
                "WhisperForConditionalGeneration",
                "WhisperConfig",
                vocab_size=WORDS,
                d_model=32,
                num_mel_bins=16,
                encoder_layers=2,
                decoder_layers=2,
                encoder_ffn_dim=48,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                decoder_ffn_dim=48,
                max_source_positions=16,
                max_target_positions=32,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=1,
            ),
            _spectrogram,
        ),
        ThirdPartyModel(
            "Audio Spectrogram Transformer",
            "transformers",
            _model(
                "ASTForAudioClassification",
                "ASTConfig",
                **{**LAYERS, "num_labels": CLASSES, "max_length": 32, "num_mel_bins": 16},
                patch_size=8,
                time_stride=8,
                frequency_stride=8,
            ),
            _spectrum,
        ),
        ThirdPartyModel(
            "PatchTST",
            "transformers",
            _model(
                "PatchTSTForPrediction",
                "PatchTSTConfig",
                num_input_channels=3,
                context_length=32,
                prediction_length=8,
                patch_length=8,
                patch_stride=8,
                d_model=16,
                num_attention_heads=2,
                num_hidden_layers=2,
                ffn_dim=24,
            ),
            _series,
        ),
    ]
