"""Puts a plan on a model and its optimizer, and takes it off again."""

import atexit
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.optim import Optimizer

from autosync.errors import InvalidInput, NotSupported
from autosync.plan import Plan
from autosync.runtime.engine import Engine
from autosync.runtime.execution_trace import ExecutionTrace
from autosync.runtime.exit import finish_at_exit
from autosync.runtime.failures import lost_peer
from autosync.runtime.hooks.forward_gates import Gates, tensors_in
from autosync.runtime.hooks.gradient_hooks import Removable, watch
from autosync.runtime.hooks.module_buffers import BufferBroadcast
from autosync.runtime.layout.build import build_records
from autosync.runtime.streams import Streams, streams_for
from autosync.runtime.torch_compile import opaque
from autosync.runtime.transport.process_groups import Groups
from autosync.runtime.updates.optimizer_state import gather_state
from autosync.runtime.updates.synchronized_optimizer import adopt, release
from autosync.runtime.updates.unused_variables import Unused

CPU = torch.device("cpu")

ABANDON_SECONDS = 10.0
"""How long a device may go on with updates after a failure."""

UNVERIFIED = (
    "autosync's CUDA path is written but has not been verified on hardware yet: compare a few "
    "iterations with torch's DDP before you trust it, or ship the strategy `ddp`."
)


@dataclass(slots=True)
class Attachment:
    """A plan at work. `detach` leaves model and optimizer as they were, trained on."""

    model: nn.Module
    optimizer: Optimizer
    engine: Engine
    gates: Gates
    end_groups: Callable[[], None]
    at_exit: Callable[[], None]
    handles: list[Removable] = field(default_factory=list)

    def detach(self, keep_state: bool = True) -> None:
        """Finish what is under way, then remove hooks, threads and process groups.

        A collective where updates are owned or sharded: the optimizer's state is gathered,
        unless nobody wants to keep it. After a failure nothing is waited for, and such state is
        lost, too.
        """
        engine = self.engine
        atexit.unregister(self.at_exit)
        if engine.failure is None:
            engine.flush()
            engine.streams.synchronize()
            if keep_state:
                gather_state(self.optimizer, engine.variables, engine.buckets, engine.group)
            if self.end_groups is not _leave_open:
                with suppress(RuntimeError):  # nothing is under way here: a peer may go first
                    engine.control.barrier(dist.BarrierOptions()).wait()
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.gates.close()
        self.model.__dict__.pop("no_sync", None)
        release(self.optimizer, engine.kind)
        self.end_groups()
        engine.close()
        if engine.failure is not None:
            _let_go(engine.streams)
        for variable in engine.variables:
            variable.parameter.grad = None


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    names: tuple[str, ...],
    process_group: dist.ProcessGroup | None = None,
    *,
    max_grad_norm: float | None = None,
    share_values: bool = True,
    groups: Groups | None = None,
    trace: ExecutionTrace | None = None,
    agreed: bool = False,
    streams: Streams | None = None,
) -> Attachment:
    """Begin to synchronize as the plan says. A collective over the process group.

    names: the plan's variables, in its order, as `model.named_parameters()` has them.
    max_grad_norm: clip by the true global norm before every update.
    share_values: begin with rank 0's parameters and buffers on every rank.
    groups: from `open_groups`, kept open by the caller for plan after plan; by default the
        attachment opens and ends its own.
    trace: receives an event for every executed message.
    agreed: whoever handed out the plan gave all ranks the same one; they need not compare.
    streams: how the device's work is ordered, and how messages get to the backend; by default as
        the model's device and the process group's backend need it.

    Raises:
        InvalidInput: the plan is for another world size or another model, or differs from rank
            0's.
        SynchronizationFailed: a peer died or hung.
        NotSupported: the optimizer or the backend cannot do what the plan asks, or the model is
            neither in host memory nor on one NVIDIA GPU.
    """
    group = working_group(process_group)
    device = device_of(model)
    if group.size() != plan.world_size:
        raise InvalidInput(
            f"the plan is for {plan.world_size} ranks, the process group has {group.size()}.",
            thing="plan.shares",
            value=plan.world_size,
            remedy="Tune for this number of ranks.",
        )
    opened = groups or open_groups(group, device)
    streams = streams or streams_for(device, opened.backend, timed=trace is not None)
    opened = opened.on(streams)
    everyone = tuple(range(group.size()))
    with meeting():
        control = opened.get("control", everyone, "gloo")
        if not agreed:
            check_same_plan(control, plan)
        if share_values:
            share_initial_values(control, model)
        for_buffers = opened.get("buffers", everyone, "gloo")
        buffers = BufferBroadcast(model, for_buffers, group.rank(), streams)
        records = build_records(model, optimizer, plan, names, opened)
        unused = Unused(own_store(opened), group.size())
    engine = Engine(
        optimizer,
        plan,
        records,
        opened.close,
        group,
        control,
        unused,
        buffers,
        max_grad_norm,
        trace,
        streams,
        opened.timeout.total_seconds(),
    )
    gates = Gates(model, engine.variables, engine.wait_for)
    end_groups = _leave_open if groups else opened.close
    engine.scatter_state({})
    streams.settle()
    engine.start()
    at_exit = finish_at_exit(engine, end_groups)
    attachment = Attachment(model, optimizer, engine, gates, end_groups, at_exit)
    adopt(optimizer, engine)
    model.__dict__["no_sync"] = engine.no_sync
    attachment.handles.extend(_hooks(model, engine, gates, plan.shares[group.rank()]))
    return attachment


def _let_go(streams: Streams) -> None:
    """After a failure: updates that a device was asked for must not run into what follows, such as
    restored weights. Groups have ended, so nothing waits for a peer; what does not end counts as
    lost."""
    deadline = time.monotonic() + ABANDON_SECONDS
    with suppress(RuntimeError):  # of a device that has failed itself
        while not streams.idle() and time.monotonic() < deadline:
            time.sleep(0.01)


@contextmanager
def meeting() -> Iterator[None]:
    """Raises SynchronizationFailed where a peer does not come."""
    try:
        yield
    except RuntimeError as error:  # what torch raises for a broken process group or store
        raise lost_peer(
            f"the ranks did not meet to begin: {error}", "process_group", None, parted=False
        ) from error


def _leave_open() -> None:
    """The caller of `attach` ends its own groups."""


def working_group(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Raises InvalidInput when torch.distributed is not initialized."""
    group = process_group or dist.group.WORLD
    if group is None:
        raise InvalidInput(
            "torch.distributed is not initialized.",
            thing="process_group",
            remedy="Call torch.distributed.init_process_group first, or start with torchrun.",
        )
    return group


def open_groups(group: dist.ProcessGroup, device: torch.device | None = None) -> Groups:
    """A fresh name space for the process groups of one attached plan. device: of the model; by
    default the current GPU where the group is NCCL's, else host memory."""
    store = dist.distributed_c10d._get_default_store()
    name = f"autosync/{group.group_name}"
    times = store.add(f"{name}/attached-by-{group.rank()}", 1)
    if device is None:
        nccl = dist.get_backend(group) == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if nccl else CPU
    backend = group._get_backend(device)
    timeout: timedelta = backend.options._timeout
    kind = "nccl" if device.type == "cuda" and backend.name() == "nccl" else "gloo"
    return Groups(PrefixStore(f"{name}/{times}", store), group.rank(), timeout, kind)


def device_of(model: nn.Module) -> torch.device:
    """Where the model is.

    Raises:
        NotSupported: on several devices, or neither in host memory nor on an NVIDIA GPU.
    """
    places = [(name, parameter.device) for name, parameter in model.named_parameters()]
    device = places[0][1] if places else CPU
    for name, found in places:
        if found.type not in ("cpu", "cuda"):
            raise _refused(name, found, "the runtime executes plans in host memory and on NVIDIA "
                           "GPUs only")  # fmt: skip
        if found != device:
            raise _refused(name, found, f"others are on {device}, and a plan is for one device")
    if device.type == "cuda":
        warn_unverified()
    return device


def _refused(name: str, device: torch.device, why: str) -> NotSupported:
    return NotSupported(
        f"variable {name!r} is on {device}; {why}.",
        thing=f"variable {name}",
        value=str(device),
        remedy="Ship the strategy `ddp` (torch's own engine, on any device), or train on the CPU.",
    )


@cache
def warn_unverified() -> None:
    """Once a process, until the tests marked `cuda` have passed on hardware: then this goes."""
    warnings.warn(UNVERIFIED, stacklevel=4)


def own_store(groups: Groups) -> Store:
    """Keys of one attachment, among those that share the groups one after another."""
    times = groups.store.add(f"attached-by-{groups.rank}", 1)
    return PrefixStore(f"attachment-{times}", groups.store)


def check_same_plan(control: Any, plan: Plan) -> None:
    """Raises InvalidInput on every rank when one rank's plan is not rank 0's."""
    mine = torch.tensor(list(bytes.fromhex(plan.id)), dtype=torch.uint8, device="cpu")
    first = mine.clone()
    control.broadcast([first], dist.BroadcastOptions()).wait()
    differs = torch.tensor([0 if torch.equal(mine, first) else 1], device="cpu")
    control.allreduce([differs], dist.AllreduceOptions()).wait()
    if int(differs):
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


def _hooks(model: nn.Module, engine: Engine, gates: Gates, share: float) -> list[Removable]:
    handles: list[Removable] = [watch(engine, variable, share) for variable in engine.variables]
    handles.append(model.register_forward_pre_hook(_before_forward(model, engine, gates)))
    handles.append(
        model.register_forward_hook(_after_forward(model, engine, gates), always_call=True)
    )
    for module in model.modules():
        handles.append(module.register_state_dict_pre_hook(_flush_before_reading(engine)))
        handles.append(module.register_load_state_dict_pre_hook(_flush_before_loading(engine)))
    return handles


def _before_forward(
    model: nn.Module, engine: Engine, gates: Gates
) -> Callable[[nn.Module, Any], None]:
    record = any(variable.deferred for variable in engine.variables)

    def hook(module: nn.Module, args: Any) -> None:
        if module is not model:  # a copy of the model
            return
        if not (torch.is_grad_enabled() and model.training):
            engine.flush()
            return
        engine.begin_forward()
        if record and not gates.recorded:
            gates.start_recording()

    return opaque(hook)


def _after_forward(
    model: nn.Module, engine: Engine, gates: Gates
) -> Callable[[nn.Module, Any, Any], None]:
    def expect_end(gradient: Tensor) -> None:
        engine.expect_end()

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if module is not model:
            return
        gates.stop_recording()
        if not (torch.is_grad_enabled() and model.training and engine.synchronizing):
            return
        engine.end_forward()
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(expect_end)

    return opaque(hook)


def _flush_before_reading(engine: Engine) -> Callable[..., None]:
    def hook(module: nn.Module, prefix: str, keep_vars: bool) -> None:
        engine.flush()

    return opaque(hook)


def _flush_before_loading(engine: Engine) -> Callable[..., None]:
    def hook(module: nn.Module, *args: Any) -> None:
        engine.flush()

    return opaque(hook)
