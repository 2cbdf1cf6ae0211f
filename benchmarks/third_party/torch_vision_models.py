"""Models of torchvision and timm, small or at small configurations."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.third_party.zoo import (
    BATCH,
    CLASSES,
    PIXELS,
    Batch,
    ThirdPartyModel,
    cross_entropy,
    images,
    labelled,
)


def _torchvision(
    name: str,
    factory: str,
    loss: Callable[..., Tensor] = cross_entropy,
    batch: Callable[[torch.Generator], Batch] = labelled,
    batch_size: int = BATCH,
    **options: Any,
) -> ThirdPartyModel:
    def build() -> nn.Module:
        models = importlib.import_module("torchvision.models")
        package, _, function = factory.rpartition(".")
        module = importlib.import_module(f"torchvision.models.{package}") if package else models
        model: nn.Module = getattr(module, function)(**options)
        return model.train()

    return ThirdPartyModel(name, "torchvision", build, batch, loss, batch_size=batch_size)


def _pixelwise(outputs: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs["out"], labels)


def _with_auxiliary(outputs: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(outputs.logits, labels)
    for extra in (outputs.aux_logits1, outputs.aux_logits2):
        loss = loss + 0.3 * nn.functional.cross_entropy(extra, labels)
    return loss


def _sum_of_losses(outputs: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(outputs.values())).sum()


def _larger(generator: torch.Generator) -> Batch:
    return labelled(generator, 64)


def _large(generator: torch.Generator) -> Batch:
    return labelled(generator, 224)


def _masks(generator: torch.Generator) -> Batch:
    labels = torch.randint(0, CLASSES, (BATCH, 64, 64), generator=generator)
    return images(generator, 64), labels


def _detected(generator: torch.Generator) -> Batch:
    corner = torch.rand(2, 2, generator=generator) * 20
    targets = [
        {
            "boxes": torch.cat([corner, corner + 20], 1),
            "labels": torch.randint(1, CLASSES, (2,), generator=generator),
        }
        for _ in range(2)
    ]
    seen = [torch.rand(3, 64, 64, generator=generator) for _ in range(2)]
    return {"images": seen, "targets": targets}


def torchvision_models() -> list[ThirdPartyModel]:
    count: dict[str, Any] = {"num_classes": CLASSES}
    detection: dict[str, Any] = {"weights": None, "weights_backbone": None, **count}
    return [
        _torchvision("ResNet-18", "resnet18", **count),
        _torchvision("MobileNetV3-small", "mobilenet_v3_small", batch=_larger, **count),
        _torchvision("ShuffleNetV2", "shufflenet_v2_x0_5", **count),
        _torchvision("SqueezeNet", "squeezenet1_1", **count),
        _torchvision("EfficientNet-B0", "efficientnet_b0", **count),
        _torchvision("RegNetY-400MF", "regnet_y_400mf", **count),
        _torchvision(
            "DenseNet",
            "DenseNet",
            **{"growth_rate": 8, "block_config": (2, 2), "num_init_features": 16, **count},
        ),
        _torchvision(
            "DenseNet, checkpointed",
            "DenseNet",
            **{"growth_rate": 8, "block_config": (2, 2), "num_init_features": 16, **count},
            memory_efficient=True,
        ),
        _torchvision(
            "GoogLeNet", "googlenet", _with_auxiliary, _larger, init_weights=False, **count
        ),
        _torchvision(
            "VisionTransformer",
            "VisionTransformer",
            **{"image_size": PIXELS, "patch_size": 8, "num_layers": 2, "num_heads": 4, **count},
            hidden_dim=32,
            mlp_dim=48,
        ),
        _torchvision(
            "SwinTransformer",
            "SwinTransformer",
            patch_size=[2, 2],
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=[4, 4],
            **count,
        ),
        _torchvision(
            "LR-ASPP",
            "segmentation.lraspp_mobilenet_v3_large",
            _pixelwise,
            _masks,
            **detection,
        ),
        _torchvision(
            "SSDlite",
            "detection.ssdlite320_mobilenet_v3_large",
            _sum_of_losses,
            _detected,
            batch_size=2,
            **detection,
        ),
    ]


def _timm(
    name: str, batch: Callable[[torch.Generator], Batch] = labelled, **options: Any
) -> ThirdPartyModel:
    def build() -> nn.Module:
        timm = importlib.import_module("timm")
        model: nn.Module = timm.create_model(name, num_classes=CLASSES, **options)
        return model.train()

    return ThirdPartyModel(name, "timm", build, batch, cross_entropy)


def timm_models() -> list[ThirdPartyModel]:
    patches: dict[str, Any] = {"img_size": PIXELS, "patch_size": 8, "embed_dim": 32, "depth": 2}
    return [
        _timm("resnet10t"),
        _timm("vit_tiny_patch16_224", num_heads=4, **patches),
        _timm("deit_tiny_distilled_patch16_224", num_heads=4, **patches),
        _timm("mixer_s32_224", _large),
        _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), drop_path_rate=0.1),
        _timm("mobilenetv3_small_050", _larger),
        _timm("ghostnet_050", _larger),
        _timm("regnetx_002"),
        _timm("edgenext_xx_small", _larger),
        _timm("levit_128s", _large),
        _timm("efficientvit_b0", _larger),
    ]
