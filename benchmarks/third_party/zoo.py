"""What a third-party model needs to be trained for a few steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

BATCH, TOKENS, WORDS, PIXELS, CLASSES = 4, 16, 96, 32, 10

Batch = tuple[Any, ...] | dict[str, Any]
UNUSED: Mapping[str, Any] = {"find_unused_parameters": True}
"""For models that leave parameters without a gradient, or only some batches use them."""

STATIC: Mapping[str, Any] = {"static_graph": True}
"""For models whose backward pass runs others inside, and leaves parameters without a gradient."""


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
