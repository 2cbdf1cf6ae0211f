"""transformers.Trainer: one line, `use_bundle(trainer, "best.json")`, before `trainer.train()`.

A Trainer prepares model and optimizer by its own accelerator, clips by it, and saves on one rank;
so its accelerator is given the bundle, and its other ranks take part where rank 0 saves.
"""

from pathlib import Path
from typing import Any

from torch import nn

from autosync.bundle import Bundle
from autosync.errors import InvalidInput, NotSupported
from autosync.extras import needs
from autosync.frameworks import accelerate
from autosync.frameworks.bundle_options import class_with
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.distributed import detach
from autosync.runtime.hooks.synchronized_optimizer import follows_plan

with needs("transformers", "autosync.frameworks.transformers"):
    from transformers import Trainer

SAVES = "_save_optimizer_and_scheduler"
"""The method of a Trainer that asks for the optimizer's state on the ranks that save."""


def use_bundle(trainer: Any, bundle: Bundle | str | Path, **options: Any) -> None:
    """From now on `trainer.train()` synchronizes as the bundle says, where it used torch's DDP.

    Everything else stays: the optimizer that the Trainer makes or is given, accumulation, clipping
    and the logged gradient norm (over all ranks, under any plan), evaluation, checkpoints and
    resuming. With one process nothing is synchronized, and a warning says so.

    trainer: a transformers.Trainer, or of a class made from it, that has not trained yet. options:
    of `BundleOptions`.

    Raises:
        InvalidInput: its model or optimizer is distributed already, or it has trained.
        NotSupported: it shards models itself, or this version of transformers saves otherwise.
    """
    _check_plain(trainer)
    handler = trainer.accelerator.ddp_handler
    if handler is not None:  # a script's class may make an accelerator of its own
        own = {"find_unused_parameters": handler.find_unused_parameters}  # Accelerate drops False
        options["ddp_options"] = own | dict(options.get("ddp_options") or {})
    accelerate.use_bundle(trainer.accelerator, bundle, **options)
    shared = isinstance(trainer.accelerator, accelerate.BundleAccelerator)
    if shared and not isinstance(trainer, BundleTrainer):
        trainer.__class__ = class_with(BundleTrainer, type(trainer))  # type: ignore[arg-type]


class BundleTrainer(Trainer):  # type: ignore[misc]  # has no types here
    """Comes before the script's own class in the method resolution order."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """The state is gathered from all ranks, and some of them save it."""
        if not self.args.should_save:
            self.optimizer.state_dict()
        super()._save_optimizer_and_scheduler(output_dir)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Where a plan has values that no rank holds, all of them gather what some save."""
        if not self.args.should_save:
            self.model.state_dict()
        super().save_model(output_dir, _internal_call)

    def create_accelerator_and_postprocess(self) -> None:
        """Every trial of a hyperparameter search makes a new accelerator, which gets the bundle."""
        given = self.accelerator.__dict__[accelerate.GIVEN]
        super().create_accelerator_and_postprocess()
        accelerate.give_options(self.accelerator, given)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model to train: the last one's plan ends."""
        if ATTACHED.network_of(self.model) is not None:
            detach(self.model)
        made: nn.Module = super().call_model_init(trial)
        return made


def _check_plain(trainer: Any) -> None:
    if not hasattr(Trainer, SAVES):
        raise NotSupported(
            f"this version of transformers has no Trainer.{SAVES}, so how it saves an optimizer's "
            "state is not known.",
            thing="transformers",
            value=SAVES,
            remedy="Install a version that `pip install 'autosync[transformers]'` accepts.",
        )
    if getattr(trainer, "is_distributed_loading_by_transformers", False):
        raise NotSupported(
            "the Trainer's model was sharded as it was loaded, and a bundle synchronizes whole "
            "replicas.",
            thing="trainer.model",
            remedy="Load it without a DistributedConfig, or train without a bundle.",
        )
    distributed = ATTACHED.network_of(trainer.model) is not None
    if distributed or (trainer.optimizer is not None and follows_plan(trainer.optimizer)):
        raise InvalidInput(
            "the Trainer was given a model or an optimizer that autosync.distribute has "
            "distributed.",
            thing="trainer.model",
            value=type(trainer.model).__name__,
            remedy="Give the Trainer the plain model (`autosync.detach(model)` gives it back), and "
            "call use_bundle(trainer, bundle) in place of autosync.distribute.",
        )
    if trainer.model_wrapped is not trainer.model:
        raise InvalidInput(
            "the Trainer has trained already, and its model is in "
            f"{type(trainer.model_wrapped).__name__}.",
            thing="trainer.model_wrapped",
            value=type(trainer.model_wrapped).__name__,
            remedy="Call use_bundle(trainer, bundle) before the first trainer.train().",
        )
