"""Parameter servers with clocks at work on a model and its optimizer.

The optimizer steps on every rank with the rank's own gradient. What the step has changed, times the
rank's share of the batch, is the update that travels: as in Bösen (Wei et al., "Managed
communication and consistency for fast data-parallel iterative analytics", SoCC 2015) servers only
add. Of an optimizer that is linear in the gradient, the updates of an iteration add up to one step
with the average gradient.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.optim import Optimizer

from autosync.errors import AutosyncError, InvalidInput
from autosync.extensions.staleness.document import iterations_of
from autosync.extensions.staleness.lagging import LaggingAttachment, LaggingJob
from autosync.extensions.staleness.server import (
    ClockedBucket,
    OwnedValues,
    PeerMessages,
    Reading,
    ServerClient,
    ShardServer,
    clocked_buckets,
)
from autosync.runtime.transport.agreement import CollectiveCalls, ranks_meet, reported
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.runtime.updates.part_updates import SCALARS

log = logging.getLogger("autosync")

Key = tuple[int, str]
"""A variable's index and the name of a tensor of its state."""


class ClockedAttachment(LaggingAttachment):
    """When `step()` returns, parameters hold every rank's updates of all iterations but the last s
    at least, this rank's own, and what else has arrived. With a staleness of 0 ranks go in step.

    before: the values before a step, by bucket. ages: how many steps have returned with values of
    which age, in iterations.
    """

    def __init__(self, job: LaggingJob) -> None:
        super().__init__(job)
        plan, rank, world = job.plan, job.rank, job.plan.world_size
        with ranks_meet():
            for_calls = job.groups.get("calls", tuple(range(world)), "gloo")
        self.buckets = clocked_buckets(plan, job.parameters)
        self.before = {
            bucket.index: torch.zeros(bucket.size, dtype=bucket.dtype, device="cpu")
            for bucket in self.buckets
        }
        for bucket in self.buckets:
            bucket.gather(job.parameters, self.before[bucket.index])
        mine = [bucket for bucket in self.buckets if bucket.owner == rank]
        owned = [OwnedValues(bucket, self.before[bucket.index], world) for bucket in mine]
        messages, refusals = PeerMessages(job.gradients), job.meeting.refusals
        timeout = job.groups.timeout
        late = iterations_of(plan)
        self.client = ServerClient(self.buckets, rank, late, messages, refusals, timeout)
        self.server = ShardServer(owned, rank, world, late, messages, self.client)
        because = "no rank holds the sum of all updates"
        self.calls = CollectiveCalls(for_calls, job.meeting.store, because)
        self.ages: Counter[int] = Counter()
        self._means_taken = 0

    def install(self) -> None:
        super().install()
        model = self.model
        self.handles += [
            self.given.register_state_dict_pre_hook(self.before_optimizer_state),
            model.register_state_dict_pre_hook(self.before_model_state),
            model.register_load_state_dict_pre_hook(self.before_loading),
            model.register_load_state_dict_post_hook(self.after_loading),
        ]

    def start(self) -> None:
        self.server.start()
        self.client.start()

    @property
    def failure(self) -> Exception | None:
        return self.client.failure

    @contextmanager
    def reporting(self, call: str) -> Iterator[None]:
        self.job.meeting.refusals.withdraw()
        with self._reporting(call):
            yield

    def begin_forward(self) -> None:
        """Values are this rank's own."""

    def before_copy(self) -> None:
        """Of this rank's values as they are."""

    @contextmanager
    def _reporting(self, call: str) -> Iterator[None]:
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
                self.job.meeting.refusals.post(reported(error, call))
            raise

    def before_step(self, *_: Any) -> None:
        self.client.check()
        if self.job.max_grad_norm:
            nn.utils.clip_grad_norm_(self.job.parameters, self.job.max_grad_norm)
        for bucket in self.buckets:
            bucket.gather(self.job.parameters, self.before[bucket.index])

    def after_step(self, *_: Any) -> None:
        """The step's updates leave, and the newest values are taken."""
        exchange = self.client.new_exchange()
        for bucket in self.buckets:
            update, before = exchange.updates[bucket.index].values, self.before[bucket.index]
            bucket.gather(self.job.parameters, update)
            update.sub_(before).mul_(self.job.share)
            bucket.scatter(before.add_(update), self.job.parameters)
        self.client.send(exchange, self.server)
        if (reading := self.client.read()) is not None:
            self._take(reading)
        self.ages[self.client.age] += 1

    def _take(self, reading: Reading) -> None:
        for bucket in self.buckets:
            values = reading.taken.answers[bucket.index].values
            for exchange in reading.later:
                values.add_(exchange.updates[bucket.index].values)
            bucket.scatter(values, self.job.parameters)

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
        with self._reporting(call):
            with ranks_meet():
                self.calls.meet(call)
                self._check_steps(call)
            self.client.read_own()
            with ranks_meet():
                self._barrier()  # from here on every server holds every update
                for bucket in self.buckets:
                    self._broadcast(bucket)
            self.client.drop()
            self.job.buffers.start(_wait_for)
            self.job.buffers.finish(_wait_for)

    def _broadcast(self, bucket: ClockedBucket) -> None:
        flat = self.before[bucket.index]
        if bucket.owner == self.job.rank:
            flat.copy_(self.server.owned[bucket.index].values)
        options = dist.BroadcastOptions()
        options.rootRank = bucket.owner
        self.job.meeting.control.broadcast([flat], options).wait()
        bucket.scatter(flat, self.job.parameters)

    def _check_steps(self, call: str) -> None:
        steps = torch.zeros(self.job.meeting.control.size(), dtype=torch.int64, device="cpu")
        steps[self.job.rank] = self.client.iterations
        self.job.meeting.control.allreduce([steps], dist.AllreduceOptions()).wait()
        if int(steps.min()) != int(steps.max()):
            raise InvalidInput(
                f"{call} needs every rank's updates, and the ranks have taken {steps.tolist()} "
                "steps.",
                thing="step",
                value=steps.tolist(),
                remedy="Let every rank take as many steps before it.",
            )

    def flush(self) -> None:
        self.settle("flush()")

    def stop(self, error: AutosyncError) -> None:
        self.client.fail(error)
        self.job.meeting.refusals.post(error)
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
        for parameter in self.job.parameters:
            parameter.grad = None
        self.job.groups.close()

    def leave(self) -> None:
        """No more updates of this rank will come; whoever needs some gets an error."""
        self.client.leave()
        self.server.leave(self.job.rank)

    def _serve_to_the_end(self) -> None:
        """Until the others have left, too."""
        self.client.join()
        self.server.join(self.job.groups.timeout)

    def at_exit(self) -> None:
        """Others may still need what this rank owns, and its last updates."""
        self.leave()
        self._serve_to_the_end()
        self.job.groups.close()

    def _take_mean_state(self) -> None:
        self._means_taken += 1
        with ranks_meet():
            take_mean_state(
                self.given,
                self.job.parameters,
                self.job.share,
                self.job.rank,
                self.job.meeting.control.size(),
                self.job.meeting.control,
                PrefixStore(f"states-{self._means_taken}", self.job.meeting.store),
            )

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
            if bucket.owner == self.job.rank:
                flat = self.before[bucket.index]
                bucket.gather(self.job.parameters, flat)
                self.server.owned[bucket.index].values.copy_(flat)
        with ranks_meet():
            self._barrier()


def _wait_for(work: Any) -> None:
    """Raises SynchronizationFailed where a peer does not come."""
    with ranks_meet():
        work.wait()


def take_mean_state(
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    share: float,
    rank: int,
    world: int,
    control: Any,
    store: Store,
) -> None:
    """Give every rank the mean state, by the ranks' shares of the batch; counters of steps become
    the largest. A rank without some tensor counts as zero. A collective.

    control: of all ranks. store: keys for this call alone.
    """
    mine = _tensors(optimizer, parameters)
    facts = [[*key, list(value.shape), str(value.dtype)] for key, value in mine.items()]
    store.set(str(rank), json.dumps(facts))
    known: dict[Key, tuple[tuple[int, ...], torch.dtype]] = {}
    for other in range(world):
        for index, name, shape, dtype in json.loads(store.get(str(other))):
            kind = getattr(torch, dtype.removeprefix("torch."))
            known.setdefault((index, name), (tuple(shape), kind))
    for (index, name), (shape, dtype) in sorted(known.items()):
        own = mine.get((index, name))
        if own is None:
            own = torch.zeros(shape, dtype=dtype, device="cpu")
        options = dist.AllreduceOptions()
        if name in SCALARS or not dtype.is_floating_point:
            options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
            found = own.clone()
        else:
            found = own * share
        control.allreduce([found], options).wait()
        optimizer.state[parameters[index]][name] = found
    if known:  # every rank has come here, so all have read it
        store.delete_key(str(rank))


def _tensors(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> dict[Key, Tensor]:
    return {
        (index, name): value.detach().contiguous()
        for index, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
