"""Parameter servers with clocks at work on a model and its optimizer.

The optimizer steps on every rank with the rank's own gradient. What the step has changed, times the
rank's share of the batch, is the update that travels: as in Bösen (Wei et al., "Managed
communication and consistency for fast data-parallel iterative analytics", SoCC 2015) servers only
add. Of an optimizer that is linear in the gradient, the updates of an iteration add up to one step
with the average gradient.
"""

import atexit
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.errors import AutosyncError, InvalidInput, NotSupported
from autosync.extensions.staleness.client import ServerClient
from autosync.extensions.staleness.server import ClockedBucket, ShardServer
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.execution.engine import EXIT_SECONDS
from autosync.runtime.hooks.model_hooks import (
    ModelMethods,
    PlainCopies,
    Removable,
    check_not_in_ddp,
)
from autosync.runtime.hooks.optimizer_coverage import CoverageGuard, renormalized_tables
from autosync.runtime.hooks.synchronized_optimizer import wrap_steps
from autosync.runtime.hooks.torch_compile import opaque
from autosync.runtime.transport.agreement import (
    CollectiveCalls,
    RankMeeting,
    gather_texts,
    ranks_meet,
)
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.process_groups import Groups
from autosync.runtime.transport.refusals import reported
from autosync.runtime.updates.clipping import Arguments, clipping_first
from autosync.runtime.updates.part_updates import SCALARS

log = logging.getLogger("autosync")

AMP = "_step_supports_amp_scaling"
"""torch's mark of an optimizer that a GradScaler gives its scale to."""


@dataclass(eq=False)
class ClockedAttachment:
    """See `AttachedPlan`. When `step()` returns, parameters hold every rank's updates of all
    iterations but the last s at least, this rank's own, and what else has arrived. With a staleness
    of 0 ranks go in step.

    given: the optimizer. parameters: of the plan's variables, in its order. share: this rank's part
    of the average. max_grad_norm: of each rank's own gradient. groups: what the end closes.
    module_buffers: brings the modules' buffers to rank 0's. before: the values before a step, by
    bucket. shown: those that parameters were given last. ages: how many steps have returned with
    values of which age, in iterations. loading: the module whose `load_state_dict` is at work.
    """

    model: nn.Module
    given: Optimizer
    parameters: list[nn.Parameter]
    share: float
    max_grad_norm: float | None
    groups: Groups
    meeting: RankMeeting
    calls: CollectiveCalls
    module_buffers: BufferBroadcast
    buckets: list[ClockedBucket]
    before: dict[int, Tensor]
    client: ServerClient
    server: ShardServer
    handles: list[Removable] = field(default_factory=list)
    ages: Counter[int] = field(default_factory=Counter)
    shown: dict[int, Tensor] = field(default_factory=dict)
    loading: nn.Module | None = None

    @property
    def failure(self) -> Exception | None:
        return self.client.failure

    @property
    def rank(self) -> int:
        return self.groups.rank

    def install(self) -> None:
        """Put it on; `unhook` takes back what this has done."""
        self.shown = self.before
        model, optimizer = self.model, self.given
        planned = {id(parameter) for parameter in self.parameters}
        within = {name: p for name, p in model.named_parameters() if id(p) in planned}
        guard = CoverageGuard(model, [optimizer], self.parameters, within_steps=within)
        self.handles += [
            guard.watch_others(),
            PlainCopies(model, lambda: None),
            wrap_steps(optimizer, self._reporting_step),
            *guard.watch_steps(),
            ScalerMark(optimizer),
            optimizer.register_step_pre_hook(_check_unscaled),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_pre_hook(self._before_optimizer_state),
            model.register_forward_pre_hook(opaque(lambda *given: self._before_forward(*given))),
            model.register_state_dict_pre_hook(
                lambda *_: self.synchronize("model.state_dict()", saves=True)
            ),
            *self._watch_loading(),
            ModelMethods(model, self.no_sync, self.reporting),
        ]
        ATTACHED.plans[id(model)] = self
        atexit.register(self.at_exit)

    def _watch_loading(self) -> Iterator[Removable]:
        """Of the model, or of a module of it by itself."""
        for module in self.model.modules():
            yield module.register_load_state_dict_pre_hook(self._before_loading)
            yield module.register_load_state_dict_post_hook(self._after_loading)

    def start(self) -> None:
        self.server.start()
        self.client.start()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes add to the local gradients only, here as everywhere."""
        yield

    @contextmanager
    def reporting(self, call: str) -> Iterator[None]:
        """Around a call of the script's: what ends it, the others read where they cannot go on
        without this rank's updates (`Refusals`); what another has refused is what fails here."""
        try:
            yield
        except SynchronizationFailed as error:
            failure = self.client.fail(error)
            if failure is error:
                raise
            raise failure from error
        except Exception as error:  # a closure of the script's own may raise anything
            if error is not self.client.failure:  # a peer's refusal, which is posted
                self.meeting.refusals.post(reported(error, call))
            raise

    @contextmanager
    def _reporting_step(self) -> Iterator[None]:
        with self.reporting("optimizer.step()"):
            yield
        self.meeting.refusals.withdraw()

    def _before_forward(self, module: nn.Module, *_: Any) -> None:
        if module is self.model:  # and no copy of it
            with self.reporting("model()"):
                check_not_in_ddp(self.model)

    def _before_step(self, _: Optimizer, args: Any, kwargs: Any) -> Arguments | None:
        self.client.check()
        self.loading = None  # one that has failed
        for bucket in self.buckets:
            bucket.gather(self.parameters, self.before[bucket.index])
        if not (limit := self.max_grad_norm):
            return None
        clip = partial(nn.utils.clip_grad_norm_, self.parameters, limit)
        return clipping_first(clip, args, kwargs)

    def _after_step(self, *_: Any) -> None:
        """The step's updates leave, and the newest values are taken."""
        exchange = self.client.new_exchange()
        for bucket in self.buckets:
            update, before = exchange.updates[bucket.index].values, self.before[bucket.index]
            bucket.gather(self.parameters, update)
            update.sub_(before).mul_(self.share)
            bucket.scatter(before.add_(update), self.parameters)
        self.client.send(exchange, self.server)
        if (values := self.client.read()) is not None:
            for bucket in self.buckets:
                bucket.scatter(values[bucket.index], self.parameters)
        self.shown = self.before if values is None else values
        self.ages[self.client.age] += 1

    def _written_into(self) -> str:
        """A variable that has no longer the values that it was given last; empty where all have
        them. Tables that forward passes renormalize do not count."""
        changed = {
            id(self.parameters[variable])
            for bucket in self.buckets
            for variable in bucket.changed(self.shown[bucket.index], self.parameters)
        }
        changed -= {id(table.weight) for table in renormalized_tables(self.model).values()}
        named = self.model.named_parameters()
        return next((name for name, parameter in named if id(parameter) in changed), "")

    def synchronize(self, call: str, saves: bool = False) -> None:
        """Every rank holds the sum of all updates, and rank 0's module buffers. A collective, after
        as many steps on every rank. call: of the script, for which it is. saves: what scripts have
        written into parameters since is not to be replaced.

        Raises:
            InvalidInput: ranks have taken different numbers of steps.
            NotSupported: a module buffer has changed its shape; there are written values that are
                not to be replaced; or a rank has refused to go on, in its words.
            SynchronizationFailed: a rank died, or did not come.
        """
        self.client.check()
        control = self.meeting.control
        with self.reporting(call), ranks_meet():
            self.calls.meet(call)
            mine = self.client.iterations, self._written_into() if saves else ""
            said = [json.loads(text) for text in gather_texts(control, json.dumps(mine))]
            steps = [taken for taken, _ in said]
            if len({*steps}) > 1:
                raise InvalidInput(
                    f"{call} needs every rank's updates, and the ranks have taken {steps} steps.",
                    thing="step",
                    value=steps,
                    remedy="Let every rank take as many steps before it.",
                )
            for rank, (_, name) in enumerate(said):
                if name:
                    raise _written(call, name, rank)
            self.client.read_own()
            self._barrier()  # from here on every server holds every update
            for bucket in self.buckets:
                flat = self.before[bucket.index]
                if bucket.owner == self.groups.rank:
                    flat.copy_(self.server.owned[bucket.index].values)
                options = dist.BroadcastOptions()
                options.rootRank = bucket.owner
                control.broadcast([flat], options).wait()
                bucket.scatter(flat, self.parameters)
            self.shown = self.before
            self.client.drop()
            self.module_buffers.start(lambda work: work.wait())
            self.module_buffers.finish(lambda work: work.wait())

    def flush(self) -> None:
        self.synchronize("flush()")

    def stop(self, error: AutosyncError) -> None:
        self.client.fail(error)
        self.meeting.refusals.post(error, final=True)
        self.leave()

    def detach(self, keep_state: bool = True) -> None:
        """Give every rank the sum of all updates and the mean of the optimizers' states, then leave
        model and optimizer as they were. keep_state: False leaves each its own. A collective; where
        it fails the plan is off all the same."""
        peers_come = False
        self.meeting.refusals.leave()
        try:
            self.synchronize("detach()")
            if keep_state:
                self._take_mean_state()
            peers_come = True
        finally:
            self.unhook()
            self.leave()
            if peers_come:
                self._serve_to_the_end()
                with suppress(RuntimeError):  # nothing is in flight here: a peer may go first
                    self._barrier()
            for parameter in self.parameters:
                parameter.grad = None
            self.groups.close()
        log.info("steps by the age of their values, in iterations: %s", dict(self.ages))

    def unhook(self) -> None:
        atexit.unregister(self.at_exit)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        ATTACHED.plans.pop(id(self.model), None)

    def leave(self) -> None:
        """No more updates of this rank will come; whoever needs some gets an error."""
        self.client.leave()
        self.server.leave(self.groups.rank)

    def at_exit(self) -> None:
        """Others may still need what this rank owns, and its last updates. Where its script has
        failed (an interactive one goes on), they may wait elsewhere until this process ends."""
        self.meeting.refusals.leave()
        self.leave()
        self._serve_to_the_end(failed=hasattr(sys, "last_value") and not hasattr(sys, "ps1"))
        self.groups.close()

    def _serve_to_the_end(self, failed: bool = False) -> None:
        """Until the others have left, too."""
        seconds = EXIT_SECONDS if failed else self.groups.timeout.total_seconds()
        self.client.join(seconds)
        self.server.join(seconds)

    def _barrier(self) -> None:
        self.meeting.control.barrier(dist.BarrierOptions()).wait()

    def _before_optimizer_state(self, *_: Any) -> None:
        self.synchronize("optimizer.state_dict()", saves=True)
        self._take_mean_state()

    def _before_loading(self, module: nn.Module, state: dict[str, Any], *_: Any) -> None:
        if self.loading is None or self.loading is module:  # else torch loads it within another
            # Loaded by torch.distributed.checkpoint, values lie where `synchronize` writes others.
            state |= {k: v.clone() for k, v in state.items() if isinstance(v, Tensor)}
            self.synchronize("model.load_state_dict()")
            self.loading = module

    def _after_loading(self, module: nn.Module, _: Any) -> None:
        """What was loaded, the same on every rank, is what servers go on from."""
        if module is not self.loading:
            return
        self.loading = None
        for bucket in self.buckets:
            flat = self.before[bucket.index]
            bucket.gather(self.parameters, flat)
            if bucket.owner == self.groups.rank:
                self.server.owned[bucket.index].values.copy_(flat)
        with ranks_meet():
            self._barrier()

    def _take_mean_state(self) -> None:
        """Give every rank the mean state, by the ranks' shares of the batch; counters of steps
        become the largest. A rank without some tensor counts as zero. A collective."""
        control, parameters = self.meeting.control, self.parameters
        mine = {
            (index, name): value.detach().contiguous()
            for index, parameter in enumerate(parameters)
            for name, value in self.given.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }
        forms = [[*key, list(value.shape), str(value.dtype)] for key, value in mine.items()]
        with ranks_meet():
            texts = gather_texts(control, json.dumps(forms))
            known = {(i, name): form for text in texts for i, name, *form in json.loads(text)}
            for (index, name), (shape, dtype) in sorted(known.items()):
                own = mine.get((index, name))
                if own is None:
                    kind = getattr(torch, dtype.removeprefix("torch."))
                    own = torch.zeros(shape, dtype=kind, device="cpu")
                options = dist.AllreduceOptions()
                if name in SCALARS or not own.dtype.is_floating_point:
                    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
                    found = own.clone()
                else:
                    found = own * self.share
                control.allreduce([found], options).wait()
                parameter = parameters[index]
                if found.shape == parameter.shape:  # whose order in memory updates go by
                    found = torch.empty_like(parameter, dtype=found.dtype).copy_(found)
                self.given.state[parameter][name] = found


class ScalerMark:
    """On an optimizer, until removed: a GradScaler gives it its scale, which `_check_unscaled`
    refuses. A fused optimizer has the mark by itself."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before = {name: value for name, value in vars(optimizer).items() if name == AMP}
        optimizer.__dict__[AMP] = True

    def remove(self) -> None:
        self._optimizer.__dict__.pop(AMP, None)
        self._optimizer.__dict__.update(self._before)


def _check_unscaled(optimizer: Optimizer, *_: Any) -> None:
    """Raises NotSupported where a GradScaler steps a marked optimizer: it scales by what this
    rank's gradients need, and skips steps that other ranks take."""
    if "grad_scale" in optimizer.__dict__:
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)
        raise NotSupported(
            "a GradScaler steps an optimizer whose plan lags: each rank would have a scale of its "
            "own, and skip steps of its own.",
            thing="GradScaler",
            remedy="Train in bfloat16 or float32, or use a strategy of staleness 0.",
        )


def _written(call: str, name: str, rank: int) -> NotSupported:
    return NotSupported(
        f"the script has written into variable {name!r} on rank {rank} since the last step(), as "
        f"one does that swaps an average of weights in: {call} would put the servers' values in "
        "its place.",
        thing=f"variable {name}",
        value=call,
        remedy="Swap averages into a copy of the model, and save that; change the values of all "
        "ranks by load_state_dict().",
    )
