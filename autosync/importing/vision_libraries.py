"""Image classifiers of timm and torchvision by name: `timm:resnet50`, `torchvision:resnet50`."""

import re
from typing import Any

import torch
from torch import nn

from autosync.errors import InvalidInput, NotFound, NotSupported
from autosync.importing.model_target import ModelTarget
from autosync.importing.refusals import first_line

NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")
IMAGE_SIZES = {"inception_v3": 299}
"""Of torchvision's models that are not of 224x224 pixels."""
USUAL_IMAGE_SIZE = 224
AUXILIARY_WEIGHTS = {"inception_v3": (0.4,), "googlenet": (0.3, 0.3)}
"""Of the losses of auxiliary classifiers, which torchvision's models have and timm's of the same
names have not. The values are of torchvision's training reference and the paper
(Szegedy et al. 2015)."""


def load_library_model(target: str, batch_size: int, *, allocate: bool = False) -> ModelTarget:
    """The named classifier without pretrained weights, with a batch of images and the cross
    entropy. Nothing is downloaded.

    allocate: build real weights, for measuring.

    Raises:
        NotSupported: the library is not installed or does not load, or the model is no classifier
            of images.
        NotFound: the library has no such model.
    """
    library, _, name = target.partition(":")
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{target!r} names no model of {library}.",
            thing="model",
            value=name,
            remedy=f"Give a name as {library} lists them, e.g. {library}:resnet50.",
        )
    build = _timm if library == "timm" else _torchvision
    try:
        with torch.device("cpu" if allocate else "meta"):
            module, size, classes = build(name)
    except (NotFound, NotSupported):
        raise
    except Exception as error:  # whatever the library raises
        raise NotSupported(
            f"{target!r} cannot be built: {first_line(error)}.",
            thing="model",
            value=name,
            remedy="Give package.module:function instead, which builds it.",
        ) from None
    inputs = torch.zeros(batch_size, *size), torch.zeros(batch_size, dtype=torch.long)
    module = module.train()
    auxiliary = () if library == "timm" else AUXILIARY_WEIGHTS.get(name, ())
    return ModelTarget(module, inputs, _Loss(auxiliary, classes), batch_size)


class _Loss:
    """Cross entropy of the scores, and of auxiliary ones at their weights."""

    def __init__(self, auxiliary: tuple[float, ...], classes: int) -> None:
        self.auxiliary = auxiliary
        self.classes = classes

    def __call__(self, outputs: Any, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = outputs if isinstance(outputs, tuple | list) else (outputs,)
        weights = (1.0, *self.auxiliary)
        if len(scores) != len(weights) or any(each.shape[-1] != self.classes for each in scores):
            raise ValueError("its outputs are not the scores of classes")
        losses = [nn.functional.cross_entropy(each, labels) for each in scores]
        weighted = [w * loss for w, loss in zip(weights, losses, strict=True)]
        return sum(weighted[1:], start=weighted[0])


def _timm(name: str) -> tuple[nn.Module, tuple[int, ...], int]:
    timm = _loaded("timm")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models(f"*{name[:6]}*"))
    module: nn.Module = timm.create_model(name, pretrained=False)
    classes = int(getattr(module, "num_classes", 0))
    if classes < 1:
        raise _no_classifier("timm", name)
    size = tuple(int(each) for each in module.pretrained_cfg["input_size"])  # type: ignore[index]  # timm's
    return module, size, classes


def _torchvision(name: str) -> tuple[nn.Module, tuple[int, ...], int]:
    models = _loaded("torchvision.models")
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models(include=f"*{name[:6]}*"))
    if name not in models.list_models(module=models):
        raise _no_classifier("torchvision", name)
    options = {"init_weights": False} if name in AUXILIARY_WEIGHTS else {}
    module: nn.Module = models.get_model(name, weights=None, **options)
    pixels = IMAGE_SIZES.get(name, USUAL_IMAGE_SIZE)
    return module, (3, pixels, pixels), 1000


def _loaded(library: str) -> Any:
    from importlib import import_module

    try:
        return import_module(library)
    except Exception as error:  # absent, or built for another torch
        package = library.partition(".")[0]
        raise NotSupported(
            f"{package} does not load: {first_line(error)}.",
            thing="model",
            value=package,
            remedy=f"Install the {package} that belongs to this torch ({torch.__version__}).",
        ) from None


def _unknown(library: str, name: str, alike: list[str]) -> NotFound:
    return NotFound(
        f"{library} has no model {name!r}.",
        thing="model",
        value=name,
        remedy=f"Alike: {', '.join(alike[:8])}." if alike else f"{library} lists its models.",
    )


def _no_classifier(library: str, name: str) -> NotSupported:
    return NotSupported(
        f"{library}'s {name!r} is no classifier of images, so its batch and loss are not known.",
        thing="model",
        value=name,
        remedy="Give package.module:function instead, which returns module, inputs and loss.",
    )
