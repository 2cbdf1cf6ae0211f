"""In which order a rank issues the messages of a plan: pure functions of the plan, so the same on
every rank.

Messages of a queue keep their order. Host memory has a queue for each channel. NCCL wants one
order for everything: a collective occupies its GPU until its peers have joined, so two ranks that
start two of them in different orders may wait for each other for ever, whatever communicators the
two are on. So there all messages of fixed size share one queue.
"""

from autosync.codes import Op, Update
from autosync.plan import Plan

VALUES = "-values"
"""End of the names of queues whose messages wait for `step()`."""

ONE_QUEUE = "all"

RAGGED = frozenset(
    {Op.SPARSE_ALL_GATHER, Op.SPARSE_PUSH, Op.SPARSE_PULL, Op.FACTOR_ALL_GATHER},
)
"""Messages whose length only their sender knows: they travel by gloo everywhere."""


def carry_values(plan: Plan) -> list[bool]:
    """Of each message, whether it carries new values, and hence waits for `step()`: the message
    before it left an update to its owner or shards, or carries values itself."""
    found: list[bool] = []
    for message in plan.messages:
        before = plan.messages[message.after] if message.after >= 0 else None
        updated = before is not None and before.update in (Update.OWNER, Update.SHARD)
        found.append(updated or (before is not None and found[message.after]))
    return found


def queue_names(plan: Plan, one_order: bool = False) -> list[str]:
    """Of each message, the queue that it keeps its order in.

    Those that wait for `step()` queue by themselves. Clipping, or a backward pass that returns
    complete gradients, must not wait for a reduction that stands behind a message which waits
    for `step()`. In the one queue they stand behind all reductions instead.
    """
    names = []
    for message, values in zip(plan.messages, carry_values(plan), strict=True):
        if one_order and message.operation not in RAGGED:
            names.append(ONE_QUEUE)
        else:
            names.append(message.channel.name + (VALUES if values else ""))
    return names


def issue_order(plan: Plan) -> list[int]:
    """Message indices in the total order of a plan; every queue issues its own in this order.

    First all that do not wait for `step()`, then those that do, each in the plan's order. None
    waits for one behind it: a message's predecessor in its chain has a smaller index, and waits
    for `step()` only if it does.
    """
    values = carry_values(plan)
    return sorted(range(len(plan.messages)), key=lambda index: (values[index], index))
