"""Puts a plan of parameter servers with clocks on a model and its optimizer."""

import atexit

import torch

from autosync.extensions.staleness.clocked_attachment import ClockedAttachment
from autosync.extensions.staleness.clocked_buckets import clocked_buckets
from autosync.extensions.staleness.lagging_groups import LaggingJob, met_ranks
from autosync.extensions.staleness.scaler_refusal import mark_for_scalers
from autosync.extensions.staleness.server_client import ServerClient
from autosync.extensions.staleness.shard_server import OwnedValues, ShardServer
from autosync.extensions.staleness.stamped_messages import PeerMessages
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.hooks.model_methods import ModelMethods
from autosync.runtime.hooks.optimizer_coverage import CoverageGuard
from autosync.runtime.hooks.plain_copies import PlainCopies
from autosync.runtime.hooks.step_wrapper import wrap_steps
from autosync.runtime.hooks.torch_compile import opaque
from autosync.runtime.transport.agreement import CollectiveCalls, ranks_meet


def attach_clocked(job: LaggingJob) -> ClockedAttachment:
    """As `attachment.attach`, for a plan whose owners answer with values of a bounded age. With a
    staleness of 0 the ranks go in step. A collective over the process group.

    Raises:
        NotSupported: the plan has messages other than between owners and all ranks, or the model is
            not in host memory.
    """
    plan, rank, world = job.plan, job.group.rank(), job.group.size()
    with met_ranks(job) as met:
        buckets = clocked_buckets(plan, met.parameters)
        with ranks_meet():
            for_calls = met.all.get("calls", tuple(range(world)), "gloo")
        before = {b.index: torch.zeros(b.size, dtype=b.dtype, device="cpu") for b in buckets}
        for bucket in buckets:
            bucket.gather(met.parameters, before[bucket.index])
        owned = [OwnedValues(b, before[b.index], world) for b in buckets if b.owner == rank]
        messages = PeerMessages(met.gradients)
        refusals, timeout = met.meeting.refusals, met.all.timeout
        client = ServerClient(buckets, rank, plan.staleness, messages, refusals, timeout)
        server = ShardServer(owned, rank, world, plan.staleness, messages, client)
        because = "no rank holds the sum of all updates"
        made = ClockedAttachment(
            job.model,
            job.optimizer,
            met.parameters,
            buckets,
            server,
            client,
            met,
            CollectiveCalls(for_calls, met.meeting.store, because),
            rank,
            plan.shares[rank],
            job.max_grad_norm,
            before,
        )
        met.undo.callback(made.unhook)
        _install(made)
    server.start()
    client.start()
    return made


def _install(made: ClockedAttachment) -> None:
    model, optimizer = made.model, made.given
    guard = CoverageGuard(model, [optimizer], made.parameters)
    made.handles += [
        guard.watch_others(),
        PlainCopies(model, lambda: None),  # of this rank's values as they are
        mark_for_scalers(optimizer),
        wrap_steps(optimizer, lambda: made.going_on("optimizer.step()")),
        optimizer.register_step_pre_hook(lambda *given: made.check_step(guard, *given)),
        optimizer.register_step_pre_hook(made.before_step),
        optimizer.register_step_post_hook(made.after_step),
        optimizer.register_state_dict_pre_hook(made.before_optimizer_state),
        model.register_forward_pre_hook(opaque(lambda *given: made.before_forward(*given))),
        model.register_state_dict_pre_hook(made.before_model_state),
        model.register_load_state_dict_pre_hook(made.before_loading),
        model.register_load_state_dict_post_hook(made.after_loading),
    ]
    made.handles.append(ModelMethods(model, made.no_sync, made.going_on))
    ATTACHED.plans[id(model)] = made
    atexit.register(made.at_exit)
