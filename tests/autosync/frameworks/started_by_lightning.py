"""A script whose two ranks Lightning starts itself: `BUNDLE WEIGHTS`."""

import sys

import torch

from tests.autosync.frameworks.lightning_models import Regression, few, loader

from autosync.frameworks.lightning import AutoSyncStrategy  # isort: skip
from lightning.pytorch import Trainer  # isort: skip


class UnderAPlan(Regression):
    def on_train_end(self) -> None:
        assert self.optimizer_classes == {"SynchronizedAdamW"}


def main(bundle: str, weights: str) -> None:
    model = UnderAPlan()
    trainer = Trainer(
        strategy=AutoSyncStrategy(bundle, start_method="fork"),
        accelerator="cpu",
        devices=2,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, loader(), few())
    torch.save(model.state_dict(), weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
