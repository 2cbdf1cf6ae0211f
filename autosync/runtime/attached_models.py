"""The models of this process that `distribute` has attached to a plan or to torch's DDP. A second
engine on one of them would average gradients twice."""

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from autosync.errors import AutosyncError, InvalidInput
from autosync.runtime.hooks.model_hooks import Removable
from autosync.runtime.hooks.synchronized_optimizer import follows_plan
from autosync.runtime.hooks.torch_compile import compiled_from

REPLICATED = (DistributedDataParallel, DataParallel)


class AttachedPlan(Protocol):
    """An attachment, whichever form its plan has, as it is looked up by its model. given: the
    optimizer, or the list of several, as the script gave it. rank: this one's, in the process group
    of the plan. failure: what has ended it."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def given(self) -> Optimizer | Sequence[Optimizer]: ...

    @property
    def rank(self) -> int: ...

    @property
    def failure(self) -> Exception | None: ...

    def flush(self) -> None:
        """Wait until everything of the last iteration has ended. A collective for some plans."""
        ...

    def stop(self, error: AutosyncError) -> None:
        """Stop this rank; the others stop, too, with the same reason."""
        ...

    def detach(self, keep_state: bool = True) -> None:
        """Restore the plain model and optimizers."""
        ...


@dataclass(frozen=True, slots=True)
class WrappedByDdp:
    """What `distribute` has done to an optimizer beside torch's DDP: `handles` take it off.
    optimizers: as the script gave them, one or a list."""

    optimizers: Optimizer | Sequence[Optimizer]
    handles: tuple[Removable, ...] = ()


class AttachedModels:
    """By identity. A plan holds its model until it is detached, DDP's wrapper is held weakly."""

    def __init__(self) -> None:
        self.plans: dict[int, AttachedPlan] = {}
        self.wrapped: WeakKeyDictionary[DistributedDataParallel, WrappedByDdp] = WeakKeyDictionary()
        self.detached: WeakSet[DistributedDataParallel] = WeakSet()
        self.sharded: WeakSet[nn.Module] = WeakSet()

    def ddp_around(self, model: nn.Module) -> DistributedDataParallel | None:
        """torch's DDP that `distribute` has put around the model, or that is the model itself."""
        for ddp in self.wrapped:
            if ddp is model or compiled_from(ddp.module) is model:
                return ddp
        return None

    def plan_of(self, model: nn.Module) -> AttachedPlan | None:
        """That it follows, compiled or not."""
        return self.plans.get(id(compiled_from(model)))

    def network_of(self, model: nn.Module) -> nn.Module | None:
        """What is trained in the place of a distributed model: itself, or torch's DDP around it.
        None where nobody has distributed it."""
        plain = compiled_from(model)
        return model if id(plain) in self.plans else self.ddp_around(plain)

    def came_with_model(self, optimizer: Optimizer) -> bool:
        """Whether `distribute` was given it with a model that is distributed still."""
        given = [plan.given for plan in self.plans.values()]
        given += [made.optimizers for made in self.wrapped.values()]
        each = ([one] if isinstance(one, Optimizer) else one for one in given)
        return any(held is optimizer for optimizers in each for held in optimizers)


ATTACHED = AttachedModels()


def check_plain(model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Raises InvalidInput where the model, part of it, or an optimizer follows a plan already."""
    mine = {id(parameter): name for name, parameter in model.named_parameters()}
    for plan in ATTACHED.plans.values():
        for parameter in plan.model.parameters():
            if (name := mine.get(id(parameter))) is not None:
                raise _distributed_already(model, f"its parameter {name!r} follows a plan")
    for optimizer in optimizers:
        if follows_plan(optimizer):
            raise InvalidInput(
                f"the optimizer ({type(optimizer).__name__}) follows the plan of another model.",
                thing="optimizer",
                value=type(optimizer).__name__,
                remedy="Give each distributed model an optimizer of its own, or distribute one "
                "module that holds both; `autosync.detach(model)` takes the first plan off.",
            )


def check_unwrapped(model: nn.Module) -> None:
    """Raises InvalidInput where torch's DDP is in the model or around it."""
    for name, module in model.named_modules():
        if isinstance(module, REPLICATED):
            where = f"its module {name!r} is" if name else "it is"
            raise _distributed_already(model, f"{where} torch's {type(module).__name__}")
    if _wrappers(model):
        gc.collect()  # a reducer is in a reference cycle: what is dropped goes now
    if _wrappers(model):
        raise _distributed_already(model, "torch's DistributedDataParallel is around it")


def _wrappers(model: nn.Module) -> bool:
    """Whether any DDP of this process synchronizes a parameter of the model."""
    mine = {id(parameter) for parameter in model.parameters()}
    found = (one for one in gc.get_objects() if issubclass(type(one), DistributedDataParallel))
    return any(
        id(parameter) in mine
        for ddp in found
        if ddp not in ATTACHED.detached
        for parameter in ddp.parameters()
    )


def _distributed_already(model: nn.Module, why: str) -> InvalidInput:
    return InvalidInput(
        f"the model ({type(model).__name__}) is distributed already: {why}, and two engines would "
        "both average its gradients.",
        thing="model",
        value=type(model).__name__,
        remedy="Call autosync.distribute once, with the plain model; "
        "`autosync.detach(model)` gives a distributed one back. Where Accelerate or a Trainer "
        "prepares the model, write `use_bundle(accelerator, bundle)` of "
        "autosync.frameworks.accelerate, or `use_bundle(trainer, bundle)` of "
        "autosync.frameworks.transformers, instead.",
    )
