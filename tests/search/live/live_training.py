"""What tests of `autosync.tune` train: a small transformer, its batches, and fingerprints of a
model and its optimizer."""

import hashlib
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autosync.errors import AutosyncError
from autosync.search.loop.outcome import TuningEvent

VOCABULARY, WIDTH, LENGTH, BATCH = 64, 32, 6, 4


class Tiny(nn.Module):
    """A transformer with dropout, a tied embedding, and buffers that change."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.1, batch_first=True)
            for _ in range(2)
        )
        self.norm = nn.BatchNorm1d(LENGTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def batch_of(rank: int, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)


def loss_on(model: nn.Module, tokens: Tensor) -> Tensor:
    loss: Tensor = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    return loss


def step_on(tokens: Tensor) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss_on(model, tokens).backward()
        optimizer.step()

    return step


def two_hosts(rank: int) -> None:
    """Of three ranks, two are on the first."""
    os.environ["AUTOSYNC_HOST"] = "first" if rank < 2 else "second"


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Changes with any bit of the values, gradients, state, settings and random states."""
    seen = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            seen.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                seen.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for part in value:
                add(part)
        else:
            seen.update(repr(value).encode())

    add([*model.parameters(), *model.buffers()])
    add([p.grad for p in model.parameters()])
    add(optimizer.state_dict())
    legacy = np.random.get_state()
    assert isinstance(legacy, tuple)
    add([torch.get_rng_state(), list(random.getstate()), legacy[1].tolist()])
    add([module.training for module in model.modules()])
    return seen.hexdigest()


def made(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Trained a step already, so that there is a state and a gradient to lose."""
    torch.manual_seed(7)
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step_on(batch_of(0, 99))(model, optimizer)
    torch.manual_seed(1000 + rank)
    random.seed(rank)
    return model, optimizer


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> list[Tensor]:
    """Values after some iterations on batches of each rank's own; rank 0's buffers too (those of
    the others are equal after the next exchange only, in DDP and here at different moments)."""
    torch.manual_seed(55 + rank)
    for number in range(4):
        step_on(batch_of(rank, number))(model, optimizer)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    values = inner.state_dict()  # waits for updates that were to run into the next forward
    named = {name for name, _ in inner.named_parameters(remove_duplicate=False)}
    return [value.clone() for name, value in values.items() if rank == 0 or name in named]


class EventChecks:
    """Of a tuning's events, on rank 0. restored: whether model and optimizers were as before when
    the search ended. messages: of all. failures: messages of trials without a time."""

    def __init__(self, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        self.trained = [(model, optimizer) for optimizer in optimizers]
        self.before = [fingerprint(*each) for each in self.trained]
        self.restored: list[bool] = []
        self.messages: list[str] = []
        self.failures: list[str] = []

    def __call__(self, event: TuningEvent) -> None:
        self.messages.append(event.message)
        if event.kind == "done":
            self.restored.append([fingerprint(*each) for each in self.trained] == self.before)
        if event.kind in ("search", "confirm") and not event.message.endswith(" ms"):
            self.failures.append(event.message)


def refusal_of(call: Callable[..., object], *given: Any, **options: Any) -> str:
    """What an error of the call says."""
    try:
        call(*given, **options)
    except (AutosyncError, ValueError) as error:
        return str(error)
    return "no error"
