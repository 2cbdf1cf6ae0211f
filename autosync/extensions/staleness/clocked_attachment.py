"""A plan of parameter servers with clocks at work on a model and its optimizer.

The optimizer steps on every rank with the rank's own gradient. What the step has changed, times the
rank's share of the batch, is the update that travels: as in Bösen (Wei et al., "Managed
communication and consistency for fast data-parallel iterative analytics", SoCC 2015) servers only
add. Of an optimizer that is linear in the gradient, the updates of an iteration add up to one step
with the average gradient.
"""

import atexit
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.optim import Optimizer

from autosync.errors import AutosyncError, InvalidInput
from autosync.extensions.staleness.clocked_buckets import ClockedBucket
from autosync.extensions.staleness.lagging_groups import LaggingGroups, wait_for
from autosync.extensions.staleness.mean_optimizer_state import take_mean_state
from autosync.extensions.staleness.scaler_refusal import check_unscaled
from autosync.extensions.staleness.server_client import Reading, ServerClient
from autosync.extensions.staleness.shard_server import ShardServer
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.hooks.gradient_hooks import Removable
from autosync.runtime.hooks.model_hooks import check_not_in_ddp
from autosync.runtime.hooks.optimizer_coverage import CoverageGuard
from autosync.runtime.transport.agreement import CollectiveCalls, ranks_meet, reported
from autosync.runtime.transport.failures import SynchronizationFailed

log = logging.getLogger("autosync")


@dataclass(slots=True)
class ClockedAttachment:
    """A plan of staleness s at work. When `step()` returns, parameters hold every rank's updates of
    all iterations but the last s at least, this rank's own, and what else has arrived.

    given: the optimizer as the script gave it. share: this rank's part of the average. before: the
    values before a step, by bucket. ages: how many steps have returned with values of which age, in
    iterations.
    """

    model: nn.Module
    given: Optimizer
    parameters: list[nn.Parameter]
    buckets: list[ClockedBucket]
    server: ShardServer
    client: ServerClient
    groups: LaggingGroups
    calls: CollectiveCalls
    rank: int
    share: float
    max_grad_norm: float | None
    before: dict[int, Tensor]
    ages: Counter[int] = field(default_factory=Counter)
    handles: list[Removable] = field(default_factory=list)
    met: int = 0

    def before_forward(self, module: nn.Module, *_: Any) -> None:
        if module is self.model:  # and no copy of it
            with self.going_on("model()"):
                check_not_in_ddp(self.model)

    def check_step(self, guard: CoverageGuard, optimizer: Optimizer, *_: Any) -> None:
        guard.check(optimizer)
        check_unscaled(optimizer)

    @contextmanager
    def going_on(self, call: str) -> Iterator[None]:
        """Around what the script does on this rank alone, whatever it was told before."""
        self.groups.meeting.refusals.withdraw()
        with self._peers_told(call):
            yield

    @contextmanager
    def _peers_told(self, call: str) -> Iterator[None]:
        """What ends the script's call, the others read where they miss this rank's updates; what
        another has refused is what fails here."""
        try:
            yield
        except SynchronizationFailed as error:
            failure = self.client.fail(error)
            if failure is error:
                raise
            raise failure from error
        except Exception as error:  # a closure of the script's own may raise anything
            if error is not self.client.failure:  # a peer's refusal, which is posted
                self.groups.meeting.refusals.post(reported(error, call))
            raise

    def before_step(self, *_: Any) -> None:
        self.client.check()
        if self.max_grad_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        for bucket in self.buckets:
            bucket.gather(self.parameters, self.before[bucket.index])

    def after_step(self, *_: Any) -> None:
        """The step's updates leave, and the newest values are taken."""
        exchange = self.client.new_exchange()
        for bucket in self.buckets:
            update, before = exchange.updates[bucket.index].values, self.before[bucket.index]
            bucket.gather(self.parameters, update)
            update.sub_(before).mul_(self.share)
            bucket.scatter(before.add_(update), self.parameters)
        self.client.send(exchange, self.server)
        if (reading := self.client.read()) is not None:
            self._take(reading)
        self.ages[self.client.age] += 1

    def _take(self, reading: Reading) -> None:
        for bucket in self.buckets:
            values = reading.taken.answers[bucket.index].values
            for exchange in reading.later:
                values.add_(exchange.updates[bucket.index].values)
            bucket.scatter(values, self.parameters)

    def settle(self, call: str) -> None:
        """Every rank holds the sum of all updates, and rank 0's module buffers. A collective, after
        as many steps on every rank. call: of the script, for which it is.

        Raises:
            InvalidInput: ranks have taken different numbers of steps.
            NotSupported: a module buffer has changed its shape; or a rank has refused to go on, in
                its words.
            SynchronizationFailed: a rank died, or did not come.
        """
        self.client.check()
        with self._peers_told(call):
            with ranks_meet():
                self.calls.meet(call)
                self._check_steps(call)
            self.client.read_own()
            with ranks_meet():
                self._barrier()  # from here on every server holds every update
                for bucket in self.buckets:
                    self._broadcast(bucket)
            self.client.drop()
            self.groups.buffers.start(wait_for)
            self.groups.buffers.finish(wait_for)

    def _broadcast(self, bucket: ClockedBucket) -> None:
        flat = self.before[bucket.index]
        if bucket.owner == self.rank:
            flat.copy_(self.server.owned[bucket.index].values)
        options = dist.BroadcastOptions()
        options.rootRank = bucket.owner
        self.groups.meeting.control.broadcast([flat], options).wait()
        bucket.scatter(flat, self.parameters)

    def _check_steps(self, call: str) -> None:
        steps = torch.zeros(self.groups.meeting.control.size(), dtype=torch.int64, device="cpu")
        steps[self.rank] = self.client.iterations
        self.groups.meeting.control.allreduce([steps], dist.AllreduceOptions()).wait()
        if int(steps.min()) != int(steps.max()):
            raise InvalidInput(
                f"{call} needs every rank's updates, and the ranks have taken {steps.tolist()} "
                "steps.",
                thing="step",
                value=steps.tolist(),
                remedy="Let every rank take as many steps before it.",
            )

    def _barrier(self) -> None:
        self.groups.meeting.control.barrier(dist.BarrierOptions()).wait()

    @property
    def failure(self) -> Exception | None:
        return self.client.failure

    def flush(self) -> None:
        self.settle("flush()")

    def stop(self, error: AutosyncError) -> None:
        self.client.fail(error)
        self.groups.meeting.refusals.post(error)
        self.leave()

    def detach(self, keep_state: bool = True) -> None:
        """Give every rank the sum of all updates and the mean of the optimizers' states, then leave
        model and optimizer as they were. keep_state: False leaves each its own. A collective; where
        it fails the plan is off all the same."""
        try:
            self.settle("detach()")
            if keep_state:
                self._take_mean_state()
        except AutosyncError:
            self._take_off(peers_come=False)
            raise
        self._take_off(peers_come=True)
        log.info("steps by the age of their values, in iterations: %s", dict(self.ages))

    def _take_off(self, peers_come: bool) -> None:
        self.unhook()
        self.leave()
        if peers_come:
            self._serve_to_the_end()
            with suppress(RuntimeError):  # nothing is in flight here: a peer may go first
                self._barrier()
        for parameter in self.parameters:
            parameter.grad = None
        self.groups.all.close()

    def leave(self) -> None:
        """No more updates of this rank will come; whoever needs some is told so."""
        self.client.leave()
        self.server.leave(self.rank)

    def _serve_to_the_end(self) -> None:
        """Until the others have left, too."""
        self.client.join()
        self.server.join(self.groups.all.timeout)

    def at_exit(self) -> None:
        """Others may still need what this rank owns, and its last updates."""
        self.leave()
        self._serve_to_the_end()
        self.groups.all.close()

    def unhook(self) -> None:
        atexit.unregister(self.at_exit)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        ATTACHED.plans.pop(id(self.model), None)

    def _take_mean_state(self) -> None:
        self.met += 1
        with ranks_meet():
            take_mean_state(
                self.given,
                self.parameters,
                self.share,
                self.rank,
                self.groups.meeting.control.size(),
                self.groups.meeting.control,
                PrefixStore(f"states-{self.met}", self.groups.meeting.store),
            )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes never synchronize here: gradients add up until `step()`."""
        yield

    def before_model_state(self, *_: Any) -> None:
        self.settle("model.state_dict()")

    def before_optimizer_state(self, *_: Any) -> None:
        self.settle("optimizer.state_dict()")
        self._take_mean_state()

    def before_loading(self, *_: Any) -> None:
        self.settle("model.load_state_dict()")

    def after_loading(self, *_: Any) -> None:
        """What was loaded, the same on every rank, is what servers go on from."""
        for bucket in self.buckets:
            if bucket.owner == self.rank:
                flat = self.before[bucket.index]
                bucket.gather(self.parameters, flat)
                self.server.owned[bucket.index].values.copy_(flat)
        with ranks_meet():
            self._barrier()
