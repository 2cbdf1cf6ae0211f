"""LightningModules as people write them, for the tests of the strategy."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 16
BATCH = 4


class Regression(LightningModule):  # type: ignore[misc]  # of no known type here
    """training_step calls a submodule, batch norms have buffers, a scheduler steps each epoch."""

    by_forward = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        # No bias in front of a batch norm: its gradient is rounding noise, which Adam makes large.
        into = nn.Linear(6, 10, bias=False)
        self.net = nn.Sequential(into, nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 3))
        self.losses: list[float] = []
        self.optimizer_classes: set[str] = set()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out

    def loss_of(self, batch: list[Tensor]) -> Tensor:
        x, wanted = batch
        found = self(x) if self.by_forward else self.net(x)
        return nn.functional.mse_loss(found.float(), wanted)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        self.optimizer_classes.add(type(self.trainer.optimizers[0]).__name__)
        return self.loss_of(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.losses.append(float(self.loss_of(batch)))

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.losses.append(float(self.loss_of(batch)))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class ByForward(Regression):
    by_forward = True


class Manual(Regression):
    """Calls optimizer and scheduler itself."""

    automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        assert not isinstance(optimizer, list)
        assert isinstance(scheduler, torch.optim.lr_scheduler.StepLR)
        optimizer.zero_grad()
        self.manual_backward(self.loss_of(batch))
        optimizer.step()
        if self.trainer.is_last_batch:
            scheduler.step()


class SetAnew(Manual):
    """Its optimizers are set once more, as Lightning's search for a learning rate does."""

    def on_fit_start(self) -> None:
        self.trainer.strategy.optimizers = list(self.trainer.strategy.optimizers)


class Gan(Regression):
    """Two optimizers in turns; each freezes what the other trains."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, real = batch
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        first.zero_grad()
        self.manual_backward(-self.critic(self.net(x)).mean())
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        second.zero_grad()
        fake = self.critic(self.net(x).detach())
        self.manual_backward((fake - self.critic(real)).mean())
        second.step()
        self.untoggle_optimizer(second)

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.AdamW(self.net.parameters(), lr=0.01),
            torch.optim.SGD(self.critic.parameters(), lr=0.05, momentum=0.9),
        ]


class ClippedByHand(Regression):
    """The hook in which Lightning lets a model clip."""

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        limit = 0.05 if self.trainer.global_step % 2 else 0.1
        self.clip_gradients(optimizer, gradient_clip_val=limit, gradient_clip_algorithm="norm")


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :3].sin()), batch_size=BATCH, shuffle=True)


def few() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(2 * BATCH, 6, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :3].cos()), batch_size=BATCH)
