"""Puts a plan whose updates may be late on a model and its optimizer: parameter servers with
clocks. The seam `engine` of `extensions.seams`."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.extensions.staleness.client import ServerClient
from autosync.extensions.staleness.clocked import ClockedAttachment
from autosync.extensions.staleness.document import iterations_of
from autosync.extensions.staleness.server import (
    OwnedValues,
    PeerMessages,
    ShardServer,
    clocked_buckets,
)
from autosync.plan import Message, Plan
from autosync.runtime.attachment import meet
from autosync.runtime.transport.agreement import (
    PATIENCE,
    CollectiveCalls,
    agreed_everywhere,
    ranks_meet,
)
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.process_groups import open_groups


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    names: tuple[str, ...],
    group: dist.ProcessGroup,
    *,
    max_grad_norm: float | None = None,
    share_values: bool = True,
    agreed: bool = False,
) -> ClockedAttachment:
    """As `autosync.runtime.attachment.attach`, for a plan that lags. A collective over the process
    group, after which groups of gloo are open, unless a rank cannot begin: then all ranks raise.

    Raises:
        NotSupported: the plan has messages other than those between owners and all ranks; the model
            is not in host memory.
        SynchronizationFailed: a peer does not come.
    """
    held = dict(model.named_parameters())
    parameters = [held[name] for name in names]
    groups = open_groups(group, parameters[0].device)
    everyone = tuple(range(group.size()))
    with ExitStack() as undo:
        undo.callback(groups.close)
        meeting = meet(model, plan, group, groups, share_values, agreed)
        control = meeting.control
        with agreed_everywhere(control, patience=PATIENCE):  # before any other group is opened
            _check_plan(plan, names, parameters)
        with agreed_everywhere(control, patience=PATIENCE):
            with ranks_meet():
                updates = groups.get("updates", everyone, "gloo")
                calls = groups.get("calls", everyone, "gloo")
                for_buffers = groups.get("buffers", everyone, "gloo")
            buckets = clocked_buckets(plan, parameters)
            before = {bucket.index: bucket.gathered(parameters) for bucket in buckets}
            rank, late, messages = group.rank(), iterations_of(plan), PeerMessages(updates)
            mine = [bucket for bucket in buckets if bucket.owner == rank]
            owned = [OwnedValues(one, before[one.index], plan.world_size) for one in mine]
            client = ServerClient(buckets, rank, late, messages, meeting.refusals, groups.timeout)
            because = "no rank holds the sum of all updates"
            made = ClockedAttachment(
                model,
                optimizer,
                parameters,
                plan.shares[rank],
                max_grad_norm,
                groups,
                meeting,
                CollectiveCalls(calls, meeting.store, because),
                BufferBroadcast(model, for_buffers, rank, groups.streams),
                buckets,
                before,
                client,
                ShardServer(owned, rank, plan.world_size, late, messages, client),
            )
            undo.callback(made.unhook)
            made.install()
        undo.pop_all()
    made.start()  # every rank has come so far
    return made


def check(plan: Plan, allow_inexact: bool, optimizers: int) -> None:
    """Raises NotSupported where a plan that lags was not asked for, or has several optimizers."""
    if not allow_inexact:
        raise NotSupported(
            f"the plan lets updates be {iterations_of(plan)} iterations late, which is not the "
            "same training.",
            thing="plan.staleness",
            value=iterations_of(plan),
            remedy="Pass allow_inexact=True where the training can bear it, or use a strategy of "
            "staleness 0.",
        )
    if optimizers != 1:
        raise NotSupported(
            f"the plan lags, and {optimizers} optimizers were given.",
            thing="optimizer",
            value=optimizers,
            remedy="Give one optimizer with a parameter group each, or use staleness 0.",
        )


def _check_plan(plan: Plan, names: tuple[str, ...], parameters: Sequence[nn.Parameter]) -> None:
    """Raises NotSupported for what only a plan of staleness 0 can do."""
    everyone = (tuple(range(plan.world_size)),)
    for message in plan.messages:
        plain = message.operation in (Op.PUSH, Op.PULL) and message.encoding == 0
        if not plain or plan.teams[message.teams] != everyone:
            name = names[_variable_of(plan, message)]
            raise _refused(
                f"variable {name!r} travels otherwise than between its owner and all ranks",
                f"variable {name}",
                message.operation.name.lower(),
            )
    if plan.overlap_forward:
        why = (
            "it also lets messages continue during the next forward pass, which staleness does by "
            "itself"
        )
        raise _refused(why, "plan.overlap_forward", True)
    for name, parameter in zip(names, parameters, strict=True):
        if parameter.device.type != "cpu":
            why = (
                f"variable {name!r} is on {parameter.device}: late updates travel in host memory, "
                "by gloo. NCCL's messages occupy the device until their peers come"
            )
            raise _refused(why, f"variable {name}", str(parameter.device))


def _variable_of(plan: Plan, message: Message) -> int:
    return plan.shards[plan.buckets[message.bucket][0].shard].variable


def _refused(why: str, thing: str, value: object) -> NotSupported:
    return NotSupported(
        f"the plan lags, and {why}.",
        thing=thing,
        value=value,
        remedy="Use parameter_server for every variable, without encodings, on a model in host "
        "memory; or staleness 0.",
    )
