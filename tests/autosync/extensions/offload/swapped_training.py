"""Models whose activations, or state too, are swapped in an arena, the same training without, and
what training scripts do between passes and updates."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import HostSwapper
from autosync.extensions.offload.attachment import attach as swap_to_host
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.schedule import least_budget_bytes

WIDTH = 32
BATCH = 64
DEEP_BATCH = 512
SMALLEST_BYTES = 1 << 10
ROOMY = 1 << 33
"""A budget that holds anything here."""


class Attention(nn.Module):
    """Views of one storage are saved by several operations."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 3 * WIDTH)
        self.out_of = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x.view(-1, 8, WIDTH)).chunk(3, dim=-1)
        mixed = torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value
        out: Tensor = self.out_of(torch.sin(mixed) * mixed).reshape(x.shape)
        return out


class Checkpointed(nn.Module):
    """A block that runs again in backward, between two that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        again = checkpoint(self.middle, self.first(x), use_reentrant=False)
        out: Tensor = self.last(again)
        return out


class Gated(nn.Module):
    """Parts of one storage that are no views of one tensor: each changes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        show, new = torch.unsafe_chunk(self.into(x), 2, dim=1)
        out: Tensor = show.sigmoid_() * new.tanh_()
        return out


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 4 * 2, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x.view(-1, 1, 8, WIDTH // 8))
        return out


def block() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(4 * WIDTH, WIDTH),
        nn.LayerNorm(WIDTH),
        nn.Tanh(),
    )


def blocks() -> nn.Module:
    return nn.Sequential(*(block() for _ in range(2)))


def deep() -> nn.Module:
    """Many weights for what a batch of `DEEP_BATCH` makes of them, and twice as much state."""
    middle = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(5)]
    return nn.Sequential(nn.Linear(WIDTH, 64), *middle, nn.Linear(64, WIDTH))


def wide() -> nn.Module:
    """Its weights are large enough for bundles to swap their state."""
    return nn.Sequential(
        *(nn.Linear(WIDTH, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh()), nn.Linear(512, WIDTH)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "blocks": blocks,
    "attention": lambda: nn.Sequential(*(Attention() for _ in range(2))),
    "checkpointed": Checkpointed,
    "convolutions": Convolutions,
}
OTHERS: dict[str, Callable[[], nn.Module]] = {"deep": deep, "wide": wide, "gated": Gated}


def make(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """With AdamW."""
    torch.manual_seed(3)
    model = (MODELS | OTHERS)[name]()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch_of(step: int, size: int = BATCH, rank: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(size, WIDTH, generator=generator)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, parts: int = 1
) -> None:
    """parts: micro-batches whose gradients add up."""
    optimizer.zero_grad()
    for part in batch.chunk(parts):
        model(part).square().mean().backward()
    optimizer.step()


@dataclass(frozen=True)
class Trained:
    """values: of parameters and buffers afterwards. peak_bytes: of each step."""

    values: list[Tensor]
    peak_bytes: list[int]
    swapper: HostSwapper | None


def trained(
    name: str,
    budget_bytes: int | None = None,
    arena_bytes: int = ROOMY,
    sizes: tuple[int, ...] = (BATCH,) * 5,
    parts: int = 1,
    bytes_per_second: float = float("inf"),
    with_state: bool = False,
) -> Trained:
    """After a step for each size of a batch; budget_bytes: of swapping, None without."""
    model, optimizer = make(name)
    peaks = []
    with Arena(arena_bytes, bytes_per_second) as arena:
        arena.count([*model.parameters(), *model.buffers()])
        swapper = swapping(model, budget_bytes, optimizer, with_state)
        torch.manual_seed(11)
        for step, size in enumerate(sizes):
            arena.take_peak_bytes()
            train_step(model, optimizer, batch_of(step, size), parts)
            peaks.append(arena.take_peak_bytes())
    values = [value.detach().clone() for value in model.state_dict().values()]
    return Trained(values, peaks, swapper)


def swapping(
    model: nn.Module,
    budget_bytes: int | None,
    optimizer: torch.optim.Optimizer | None = None,
    with_state: bool = True,
) -> HostSwapper | None:
    """Of small tensors as well; without a budget nothing is swapped. with_state: of the optimizer,
    if there is one."""
    if budget_bytes is None:
        return None
    optimizers = [] if optimizer is None else [optimizer]
    swap = Offload(budget_bytes, with_state and optimizer is not None)
    return swap_to_host(model, swap, optimizers, SMALLEST_BYTES)


def moved_kinds(swapper: HostSwapper) -> set[str]:
    """Of what its schedule moves: activation, state."""
    assert swapper.recorded is not None
    assert swapper.schedule is not None
    moved = swapper.schedule.spans.tensor[~swapper.schedule.kept].tolist()
    return {swapper.recorded.tensors[tensor][0] for tensor in moved}


def saved_count(swapper: HostSwapper) -> int:
    """Of activations in the recorded pass."""
    assert swapper.recorded is not None
    return sum(kind == "activation" for kind, _ in swapper.recorded.tensors)


def least_bytes(name: str, **how: Any) -> int:
    """The smallest budget in which the model trains. how: as `trained` has it."""
    found = trained(name, ROOMY, **how).swapper
    assert found is not None
    assert found.recorded is not None
    return least_budget_bytes(found.recorded.moments)


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    """To the bit."""
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


DEEP = (DEEP_BATCH,) * 6


def moves(swapper: HostSwapper | None, kind: str) -> bool:
    """The passes went by a schedule that moves such tensors (activation, state), and the next one,
    if it has begun, will."""
    assert swapper is not None
    going_on = swapper.is_following and swapper.deviations == 0
    return going_on and kind in moved_kinds(swapper)


def state_of(optimizer: Optimizer) -> list[Tensor]:
    return [
        value.detach().clone()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]


Between = Callable[[nn.Module, Optimizer, int], None]


def with_script(does: Between, budget: int | None) -> tuple[list[Tensor], int]:
    """Values and state afterwards, where a script does something between backward and step, and
    behind it again; and the least budget for that."""
    model, optimizer = make("deep")
    with Arena(ROOMY):
        swapper = swapping(model, budget, optimizer)
        for step in range(7):
            optimizer.zero_grad()
            model(batch_of(step, DEEP_BATCH)).square().mean().backward()
            does(model, optimizer, step)
            optimizer.step()
            does(model, optimizer, step)
        if swapper is not None:
            swapper.remove()
    values = [value.detach().clone() for value in model.parameters()]
    recorded = swapper.recorded if swapper is not None else None
    least = least_budget_bytes(recorded.moments) if recorded is not None else 0
    return values + state_of(optimizer), least


def evaluates(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    with torch.no_grad():
        model(batch_of(90 + step, 2 * DEEP_BATCH))


def infers(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """While state that the schedule keeps is on the device."""
    if step > 3:
        with torch.inference_mode():
            model(batch_of(90 + step, 2 * DEEP_BATCH))


def loads(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    if step in (2, 4):
        saved = io.BytesIO()
        torch.save(optimizer.state_dict(), saved)
        saved.seek(0)
        optimizer.load_state_dict(torch.load(saved))


def trained_on(
    steps: range, saved: bytes | None, budget: int | None
) -> tuple[bytes, list[Tensor], HostSwapper | None]:
    """From a checkpoint, if there is one, to the next."""
    model, optimizer = make("deep")
    with Arena(budget or ROOMY) as arena:
        arena.count(model.parameters())
        if saved is not None:
            with arena.host_memory():
                checkpoint = torch.load(io.BytesIO(saved))
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            del checkpoint
        swapper = swapping(model, budget, optimizer)
        for step in steps:
            train_step(model, optimizer, batch_of(step, DEEP_BATCH))
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return file.getvalue(), [value.detach().clone() for value in model.parameters()], swapper
