"""Where extensions meet the runtime: what `attachment.py` of an extension has, by its seam.

beside: works on the model beside whichever engine synchronizes it: who may read a parameter, and
    when. `check(model, entry, called)` raises NotSupported where it cannot work on the model
    (called: what the script calls, a compiled form of it perhaps), or in this process;
    `attach(model, entry, optimizers)`.
engine: runs the plan in place of the exact engine: what applies an update. See `EngineModule`.
division: ranks hold parts of the model under the exact engine. `prepare(model, optimizers, plan,
    backend)` raises InvalidInput or NotSupported where the model cannot be divided so, and returns
    a `Divide`.
groups: how process groups are made, and the processes that make them. The transport applies the
    document by itself (`runtime.transport.nccl`), so there is no `attachment.py`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import Store
from torch.optim import Optimizer

from autosync.extensions.document import ExtensionDocument
from autosync.extensions.registry import EXTENSIONS, Entries, Seam, part_of

if TYPE_CHECKING:
    from autosync.plan import Plan
    from autosync.runtime.execution.monitor import Monitor
    from autosync.runtime.hooks.model_hooks import Removable
    from autosync.runtime.transport.process_groups import Groups


class AttachedBeside(Protocol):
    """At work on a model beside its engine."""

    def remove(self, keep_state: bool = True) -> None:
        """Leave model and optimizers as they were. keep_state: False where the caller puts another
        state of the optimizers back."""
        ...


class AttachedEngine(Protocol):
    """A `runtime.attached_models.AttachedPlan`. handles: removed when it is detached."""

    handles: "list[Removable]"

    def flush(self) -> None: ...

    def detach(self, keep_state: bool = True) -> None: ...


class EngineModule(Protocol):
    """Of the seam `engine`."""

    def check(self, plan: "Plan", allow_inexact: bool, optimizers: int) -> None:
        """Raises NotSupported where such a plan was not asked for, or with so many optimizers."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        plan: "Plan",
        names: tuple[str, ...],
        group: dist.ProcessGroup,
        *,
        max_grad_norm: float | None = None,
        share_values: bool = True,
        agreed: bool = False,
    ) -> AttachedEngine:
        """As `autosync.runtime.attachment.attach`."""
        ...


class AttachedDivision(Protocol):
    """Parts of a model on ranks of their own."""

    def remove(self) -> None:
        """Every rank computes everything again; values are where they are."""
        ...

    def release(self) -> None:
        """Every rank has come so far: this one lets go of what it does not hold."""
        ...

    def give_back(self, with_state: bool = True) -> None:
        """Every rank holds every value again, and the optimizer's state where asked. A
        collective."""
        ...

    def renew(self) -> None:
        """After a failure: what this rank does not hold has its shape again, with zeros."""
        ...


Divide = Callable[["dist.ProcessGroup", "Groups", "Store", "Monitor"], AttachedDivision]
"""Collective: every rank opens the same process groups. Store: keys of one attached plan only.
Monitor: of that plan. When it raises, the model is as it was before."""


def _modules(entries: Entries, seam: Seam) -> list[tuple[ExtensionDocument, Any]]:
    found = [entry for entry in entries if EXTENSIONS[entry.key].seam == seam]
    return [(entry, part_of(entry.key, "attachment")) for entry in found]


def check_beside(entries: Entries, model: nn.Module, called: nn.Module) -> None:
    """Raises NotSupported where something cannot work beside the engine on this model."""
    for entry, module in _modules(entries, "beside"):
        module.check(model, entry, called)


def beside_ddp(entries: Entries) -> Entries:
    """Those that stay where torch's DDP runs in the place of a plan."""
    return tuple(entry for entry in entries if not entry.needs_plan)


def attach_beside(
    entries: Entries, model: nn.Module, optimizers: Sequence[Optimizer]
) -> list[AttachedBeside]:
    """What works beside the engine, put on the model; nothing is where one of them raises."""
    attached: list[AttachedBeside] = []
    try:
        for entry, module in _modules(entries, "beside"):
            attached.append(module.attach(model, entry, optimizers))
    except Exception:  # the device or the host has no room for it, for instance
        for each in attached:
            each.remove()
        raise
    return attached


def engine_of(plan: "Plan") -> EngineModule | None:
    """What runs the plan in place of the exact engine; None where that does."""
    return next((module for _, module in _modules(plan.extensions, "engine")), None)


def divisions_of(
    plan: "Plan", model: nn.Module, optimizers: Sequence[Optimizer], backend: str
) -> list[Divide]:
    """How ranks divide the model under the plan."""
    found = _modules(plan.extensions, "division")
    return [module.prepare(model, optimizers, plan, backend) for _, module in found]
