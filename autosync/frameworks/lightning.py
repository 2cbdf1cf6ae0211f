"""Lightning: `Trainer(strategy=AutoSyncStrategy("best.json"))` trains by a bundle's plan.

The LightningModule stays unwrapped under a plan: Lightning calls its `training_step`, which may
call `self(x)` or any submodule.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

import autosync
from autosync.bundle import Bundle
from autosync.errors import AutosyncError, NotSupported
from autosync.extras import needs
from autosync.frameworks.bundle_options import BundleOptions
from autosync.runtime.attached_models import ATTACHED, AttachedPlan
from autosync.runtime.attachment import Attachment, attachment_of
from autosync.runtime.drift_watch import OnDrift
from autosync.runtime.hooks.synchronized_optimizer import follows_plan
from autosync.runtime.transport.agreement import refused_everywhere
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.process_groups import working_group
from autosync.verification.shard_checks import SHARE_TOLERANCE

with needs("lightning", "autosync.frameworks.lightning"):
    from lightning.pytorch.strategies import DDPStrategy

CHANGE_THE_SUMS = (
    "ddp_comm_state",
    "ddp_comm_hook",
    "ddp_comm_wrapper",
    "model_averaging_period",
)
"""Options of DDPStrategy that say what travels, as a plan does."""

SYNCHRONIZED = ("zero_grad", "state_dict", "load_state_dict", "add_param_group")
"""Methods of an optimizer that follow the plan. Lightning's wrapper hands on `step` by itself."""

CLIPPING = ("clip_grad_by_norm", "clip_grad_by_value")
"""Methods of a precision plugin that read all gradients."""


class AutoSyncStrategy(DDPStrategy):  # type: ignore[misc]  # has no types here
    """Lightning's `ddp` with a bundle's plan.

    bundle: or its file. allow_lossy, allow_inexact, on_drift: as of `autosync.distribute`.
    ddp_options: of torch's DDP where that is used. options: of DDPStrategy (`start_method`,
    `process_group_backend`, `timeout`, ...), which takes those of torch's DDP as well
    (`find_unused_parameters`, ...).

    Raises:
        NotSupported: an option changes what travels.
    """

    model: Any
    _lightning_optimizers: list[Any]
    _shares: tuple[float, ...] = ()

    def __init__(
        self,
        bundle: Bundle | str | Path,
        allow_lossy: bool = False,
        ddp_options: Mapping[str, Any] | None = None,
        allow_inexact: bool = False,
        on_drift: OnDrift | None = None,
        **options: Any,
    ) -> None:
        for name in CHANGE_THE_SUMS:
            if (value := options.get(name)) is not None:
                raise NotSupported(
                    f"AutoSyncStrategy: {name}={value!r} contradicts the plan, which says what "
                    "travels.",
                    thing=f"AutoSyncStrategy({name})",
                    value=value,
                    remedy="Leave it out, or use Lightning's DDPStrategy without a bundle.",
                )
        super().__init__(**options)
        self.given = BundleOptions(bundle, allow_lossy, ddp_options, allow_inexact, on_drift)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Of the module."""
        found: list[Optimizer] = self._optimizers
        return found

    @optimizers.setter
    def optimizers(self, optimizers: list[Optimizer]) -> None:
        """Also while they follow a plan: Lightning's search for a learning rate sets them anew.
        Then they keep their wrappers, which are made of the plain class."""
        kept = {id(each.optimizer): each for each in self._lightning_optimizers}
        DDPStrategy.optimizers.fset(self, optimizers)
        self._lightning_optimizers = [
            kept.get(id(one), made) if follows_plan(one) else made
            for one, made in zip(optimizers, self._lightning_optimizers, strict=True)
        ]

    def configure_ddp(self) -> None:
        """Not before there are optimizers: see `setup`."""

    def setup(self, trainer: Any) -> None:
        """A collective while fitting: the bundle is put on the model and its optimizers."""
        super().setup(trainer)
        if trainer.state.fn == "fit":
            self._distribute()

    def _distribute(self) -> None:
        module, optimizers = self.model, list(self.optimizers)
        options = dict(self._ddp_kwargs)
        if (device_ids := self.determine_ddp_device_ids()) is not None:
            options["device_ids"] = device_ids
        with refused_everywhere(working_group(None), self.root_device):
            shipped = self.given.load("Lightning")
        self.model = self.given.distribute(module, optimizers, shipped, options)
        self._shares = shipped.plan.shares
        if (plan := attachment_of(module)) is None:
            return
        for wrapper, optimizer in zip(self._lightning_optimizers, optimizers, strict=True):
            for name in SYNCHRONIZED:
                wrapper.__dict__[name] = getattr(optimizer, name)
        if any(not variable.whole for variable in plan.engine.variables):
            self._clip_by_the_plan(plan)

    def _clip_by_the_plan(self, plan: Attachment) -> None:
        """`gradient_clip_val` and `self.clip_gradients` where no rank holds all gradients."""

        def by_norm(optimizer: Optimizer, clip_val: float) -> None:
            held = all(variable.group >= 0 for variable in plan.engine.variables)
            if len(plan.optimizers) > 1 or not held:
                kind = type(optimizer).__name__
                raise NotSupported(
                    f"gradients of optimizer {kind} are clipped by their own norm, but it does not "
                    "hold all parameters of the model, and no rank holds all gradients under this "
                    "plan.",
                    thing="gradient_clip_val",
                    value=kind,
                    remedy="Give all parameters to one optimizer, or use a strategy without owned "
                    "or sharded updates.",
                )
            plan.engine.gradients.clip_now(float(clip_val))

        def by_value(optimizer: Optimizer, clip_val: float) -> None:
            raise NotSupported(
                f"gradients are clipped by value ({clip_val}), but no rank holds all of them: the "
                "strategy updates parts of variables on the ranks that own them.",
                thing="gradient_clip_algorithm",
                value="value",
                remedy='Use Trainer(gradient_clip_algorithm="norm"), or a strategy without owned '
                "or sharded updates.",
            )

        for name, function in zip(CLIPPING, (by_norm, by_value), strict=True):
            self.precision_plugin.__dict__[name] = function

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Gradients add up on this rank alone (`accumulate_grad_batches`)."""
        with self.model.no_sync():
            yield

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Of the DistributedSampler that Lightning gives to data loaders.

        Raises:
            NotSupported: it deals evenly, and the plan does not.
        """
        shares = self._shares
        if self._attached() is not None and max(shares) - min(shares) > SHARE_TOLERANCE:
            raise NotSupported(
                f"the plan gives ranks uneven shares of the batch ({shares[:16]}), and Lightning's "
                "DistributedSampler deals evenly.",
                thing="use_distributed_sampler",
                value=True,
                remedy="Write Trainer(use_distributed_sampler=False) and give the DataLoader "
                "autosync.ShareSampler(dataset, global_batch, bundle) and its batch_size.",
            )
        found: dict[str, Any] = super().distributed_sampler_kwargs
        return found

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Lightning would also move the state to the device, which torch has done by then, and of
        which no rank may hold all."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=False):
            optimizer.load_state_dict(state)

    def on_validation_start(self) -> None:
        """Lightning may call submodules, of which the plan does not see that training pauses."""
        if (plan := self._attached()) is not None:
            plan.flush()
        super().on_validation_start()

    def on_exception(self, exception: BaseException) -> None:
        """Every other rank stops within seconds, and says why."""
        if (plan := self._attached()) is not None and plan.failure is None:
            kind = type(exception).__name__
            plan.stop(
                SynchronizationFailed(
                    f"training was interrupted by {kind}: {exception}.",
                    thing="Trainer.fit",
                    value=kind,
                    remedy="Start all ranks again from the last checkpoint.",
                )
            )
        super().on_exception(exception)

    def teardown(self) -> None:
        """Model and optimizers are plain again, all state included. A collective as
        `autosync.detach` is one, unless training was interrupted."""
        for name in CLIPPING:
            self.precision_plugin.__dict__.pop(name, None)
        plan = self._attached()
        if plan is not None and plan.failure is not None:
            with suppress(AutosyncError):  # it is raised already
                plan.detach()
        elif plan is not None or self.model is not self.lightning_module:
            self.model, _ = autosync.detach(self.model)
        self.optimizers = list(self.optimizers)  # and so are Lightning's wrappers
        super().teardown()

    def _attached(self) -> AttachedPlan | None:
        """The plan of the module, also one that lags."""
        return None if self.lightning_module is None else ATTACHED.plan_of(self.lightning_module)
