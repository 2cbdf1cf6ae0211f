"""Puts a plan on a model and its optimizer, and takes it off again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.errors import InvalidInput
from autosync.plan import Plan
from autosync.runtime.build import build_records
from autosync.runtime.engine import Engine
from autosync.runtime.gates import Gates
from autosync.runtime.hooks import gradient_hook
from autosync.runtime.optimizer import adopt, release
from autosync.runtime.trace import Trace
from autosync.runtime.transport import Groups


@dataclass(slots=True)
class Attachment:
    """A plan at work. `detach` leaves model and optimizer as they were, trained on."""

    model: nn.Module
    optimizer: Optimizer
    engine: Engine
    groups: Groups
    gates: Gates
    handles: list[RemovableHandle] = field(default_factory=list)
    lent: bool = False

    def detach(self) -> None:
        """Finish what is under way, then remove hooks, threads and process groups.

        After a failure nothing is waited for.
        """
        if self.engine.failure is None:
            self.engine.flush()
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.gates.close()
        self.model.__dict__.pop("no_sync", None)
        release(self.optimizer, self.engine.kind)
        if not self.lent or self.engine.failure is not None:
            self.groups.close()
        self.engine.close()
        for variable in self.engine.variables:
            variable.parameter.grad = None


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    names: tuple[str, ...],
    process_group: dist.ProcessGroup | None = None,
    trace: Trace | None = None,
    share_values: bool = True,
    groups: Groups | None = None,
) -> Attachment:
    """Begin to synchronize as the plan says. A collective over the process group.

    names: the plan's variables, in its order, as `model.named_parameters()` has them.
    trace: receives an event for every executed message.
    share_values: False when the replicas are known to be equal already (as DDP's `init_sync`).
    groups: kept by the caller over many plans, since connecting takes longer than the rest.

    Raises:
        InvalidInput: the plan is for another world size or another model, or differs from rank
            0's.
        NotSupported: the optimizer or the backend cannot do what the plan asks.
    """
    group = process_group or dist.group.WORLD
    if group is None:
        raise InvalidInput(
            "torch.distributed is not initialized.",
            thing="process_group",
            remedy="Call torch.distributed.init_process_group first, or start with torchrun.",
        )
    if group.size() != plan.world_size:
        raise InvalidInput(
            f"the plan is for {plan.world_size} ranks, the process group has {group.size()}.",
            thing="plan.shares",
            value=plan.world_size,
            remedy="Tune for this number of ranks.",
        )
    lent = groups is not None
    groups = groups or open_groups(group)
    control = groups.get("control", tuple(range(group.size())), "gloo")
    check_same_plan(control, plan, groups)
    if share_values:
        share_initial_values(control, model)
    records = build_records(model, optimizer, plan, names, groups)
    engine = Engine(optimizer, plan, records, groups.close, trace)
    gates = Gates(model, engine.variables, engine.wait_for)
    attachment = Attachment(model, optimizer, engine, groups, gates, lent=lent)
    engine.start()
    adopt(optimizer, engine)
    model.__dict__["no_sync"] = engine.no_sync
    attachment.handles.extend(_hooks(model, engine, gates, plan.shares[group.rank()]))
    return attachment


def open_groups(group: dist.ProcessGroup) -> Groups:
    """A fresh name space for the process groups of one attached plan."""
    store = dist.distributed_c10d._get_default_store()  # type: ignore[attr-defined]
    name = f"autosync/{group.group_name}"
    times = store.add(f"{name}/attached-by-{group.rank()}", 1)
    device = torch.device("cpu")
    backend = "nccl" if dist.get_backend(group) == "nccl" else "gloo"
    if backend == "nccl":
        device = torch.device("cuda", torch.cuda.current_device())
    timeout: timedelta = group._get_backend(device).options._timeout
    return Groups(dist.PrefixStore(f"{name}/{times}", store), group.rank(), timeout, backend)


def check_same_plan(control: Any, plan: Plan, groups: Groups) -> None:
    """Raises InvalidInput on every rank when one rank's plan is not rank 0's."""
    mine = torch.tensor(list(bytes.fromhex(plan.id)), dtype=torch.uint8)
    first = mine.clone()
    control.broadcast([first], dist.BroadcastOptions()).wait()
    differs = torch.tensor([0 if torch.equal(mine, first) else 1])
    control.allreduce([differs], dist.AllreduceOptions()).wait()
    if int(differs):
        groups.close()
        raise InvalidInput(
            f"the plans of {int(differs)} ranks differ from rank 0's; this rank has {plan.id}.",
            thing="plan",
            value=plan.id,
            remedy="Give every rank the same bundle.",
        )


def share_initial_values(control: Any, model: nn.Module) -> None:
    """Every rank begins with rank 0's parameters and buffers, as with torch's DDP."""
    for tensor in [*model.parameters(), *model.buffers()]:
        copy = tensor.detach().cpu().contiguous()
        flat = copy.view(-1).view(torch.uint8)
        control.broadcast([flat], dist.BroadcastOptions()).wait()
        with torch.no_grad():
            tensor.copy_(copy)


def _hooks(model: nn.Module, engine: Engine, gates: Gates, share: float) -> list[RemovableHandle]:
    handles = [
        variable.parameter.register_post_accumulate_grad_hook(
            gradient_hook(engine, variable, share)
        )
        for variable in engine.variables
    ]
    record = any(variable.deferred for variable in engine.variables)
    handles.append(model.register_forward_pre_hook(_before_forward(model, engine, gates, record)))
    if record:
        handles.append(model.register_forward_hook(_after_forward(model, gates), always_call=True))
    for module in model.modules():
        handles.append(module.register_state_dict_pre_hook(_flush_before_reading(engine)))
        handles.append(module.register_load_state_dict_pre_hook(_flush_before_loading(engine)))
    return handles


def _before_forward(
    model: nn.Module, engine: Engine, gates: Gates, record: bool
) -> Callable[[nn.Module, Any], None]:
    def hook(module: nn.Module, args: Any) -> None:
        if module is not model:  # a copy of the model
            return
        if not (torch.is_grad_enabled() and model.training):
            engine.flush()
        elif record and not gates.recorded:
            gates.start_recording()

    return hook


def _after_forward(model: nn.Module, gates: Gates) -> Callable[[nn.Module, Any, Tensor], None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if module is model:
            gates.stop_recording()

    return hook


def _flush_before_reading(engine: Engine) -> Callable[..., None]:
    def hook(module: nn.Module, prefix: str, keep_vars: bool) -> None:
        engine.flush()

    return hook


def _flush_before_loading(engine: Engine) -> Callable[..., None]:
    def hook(module: nn.Module, *args: Any) -> None:
        engine.flush()

    return hook
