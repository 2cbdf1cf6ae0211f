"""What both forms of staleness put on a model and its optimizer, and how their ranks meet."""

import atexit
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.errors import AutosyncError, NotSupported
from autosync.plan import Plan
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.hooks.model_hooks import (
    ModelMethods,
    PlainCopies,
    Removable,
    check_not_in_ddp,
)
from autosync.runtime.hooks.optimizer_coverage import CoverageGuard
from autosync.runtime.hooks.synchronized_optimizer import wrap_steps
from autosync.runtime.hooks.torch_compile import opaque
from autosync.runtime.transport.agreement import RankMeeting
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.process_groups import Groups

AMP = "_step_supports_amp_scaling"
"""torch's mark of an optimizer that a GradScaler tells its scale."""


@dataclass(frozen=True, slots=True)
class LaggingJob:
    """A plan that lags, and what it is put on, when all ranks have met.

    names, parameters: of the plan's variables, in its order. rank: of this process. max_grad_norm:
    of the gradient that a rank applies. groups: what the end closes. gradients: the process group
    for what lags. buffers: brings the modules' to rank 0's.
    """

    model: nn.Module
    optimizer: Optimizer
    plan: Plan
    names: tuple[str, ...]
    parameters: list[nn.Parameter]
    rank: int
    max_grad_norm: float | None
    groups: Groups
    meeting: RankMeeting
    gradients: Any
    buffers: BufferBroadcast

    @property
    def share(self) -> float:
        """This rank's part of the average."""
        return self.plan.shares[self.rank]


class LaggingAttachment(ABC):
    """A plan of staleness s at work: see `AttachedPlan`. `install` puts it on, `unhook` takes back
    what that has done."""

    def __init__(self, job: LaggingJob) -> None:
        self.job = job
        self.model = job.model
        self.given = job.optimizer
        self.handles: list[Removable] = []

    def install(self) -> None:
        job, optimizer, model = self.job, self.given, self.model
        guard = CoverageGuard(model, [optimizer], job.parameters)
        self.handles += [
            guard.watch_others(),
            PlainCopies(model, self.before_copy),
            wrap_steps(optimizer, lambda: self.reporting("optimizer.step()")),
            *guard.watch_steps(),
            ScalerMark(optimizer),
            optimizer.register_step_pre_hook(_check_unscaled),
            optimizer.register_step_pre_hook(self.before_step),
            optimizer.register_step_post_hook(self.after_step),
            model.register_forward_pre_hook(opaque(lambda *given: self._before_forward(*given))),
            ModelMethods(model, self.no_sync, self.reporting),
        ]
        ATTACHED.plans[id(model)] = self
        atexit.register(self.at_exit)

    def unhook(self) -> None:
        atexit.unregister(self.at_exit)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        ATTACHED.plans.pop(id(self.model), None)

    def _before_forward(self, module: nn.Module, *_: Any) -> None:
        if module is self.model:  # and no copy of it
            with self.reporting("model()"):
                check_not_in_ddp(self.model)
            self.begin_forward()

    def _barrier(self) -> None:
        self.job.meeting.control.barrier(dist.BarrierOptions()).wait()

    @property
    @abstractmethod
    def failure(self) -> Exception | None:
        """What has ended it."""

    @abstractmethod
    def reporting(self, call: str) -> AbstractContextManager[None]:
        """Around a call of the script's: what ends it, other ranks read where they wait for this
        one."""

    @abstractmethod
    def begin_forward(self) -> None:
        """The model is about to run."""

    @abstractmethod
    def before_copy(self) -> None:
        """The model is about to be copied or pickled."""

    @abstractmethod
    def before_step(self, *_: Any) -> None: ...

    @abstractmethod
    def after_step(self, *_: Any) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Nothing of the last iteration is under way any more."""

    @abstractmethod
    def stop(self, error: AutosyncError) -> None:
        """This rank goes no further: the others stop, too, and say why."""

    @abstractmethod
    def detach(self, keep_state: bool = True) -> None:
        """Leave model and optimizer as they were."""

    @abstractmethod
    def at_exit(self) -> None:
        """The interpreter ends."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the local gradients only."""
        yield


class ScalerMark:
    """On an optimizer, until removed: a GradScaler gives it its scale, which `_check_unscaled`
    refuses."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        optimizer.__dict__[AMP] = True

    def remove(self) -> None:
        self._optimizer.__dict__.pop(AMP, None)


def _check_unscaled(optimizer: Optimizer, *_: Any) -> None:
    """Raises NotSupported where a GradScaler steps a marked optimizer: it scales by what the newest
    gradients need, and skips steps that other ranks take."""
    if "grad_scale" in optimizer.__dict__:
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)
        raise NotSupported(
            "a GradScaler steps an optimizer whose plan lags: gradients of an earlier "
            "iteration have an earlier scale.",
            thing="GradScaler",
            remedy="Train in bfloat16 or float32, or use a strategy of staleness 0.",
        )
