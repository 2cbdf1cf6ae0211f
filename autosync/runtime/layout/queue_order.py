"""In which order a rank issues the messages of a plan: functions of the plan alone, so that every
rank computes the same.

Messages of a queue keep their order. In host memory each channel is a queue. NCCL wants one order
for everything: a collective occupies its GPU until its peers have joined, so two ranks that start
two of them in different orders may wait for each other for ever, whatever communicators the two
are on. So there all messages of fixed size share one queue.
"""

from autosync.plan import Plan

VALUES = "-values"
"""End of the names of queues whose messages wait for `step()`."""

ONE_QUEUE = "all"


def queue_names(plan: Plan, one_order: bool = False) -> list[str]:
    """Of each message, the queue that it keeps its order in.

    Those that wait for `step()` queue by themselves. Clipping, or a backward pass that returns
    complete gradients, must not wait for a reduction that stands behind a message which waits
    for `step()`. In the one queue they stand behind all reductions instead.
    """
    names = []
    for message in plan.messages:
        if one_order and not message.operation.ragged:
            names.append(ONE_QUEUE)
        else:
            names.append(message.channel.name + (VALUES if message.carries_values else ""))
    return names


def issue_order(plan: Plan) -> list[int]:
    """Message indices in the total order of a plan; every queue issues its own in this order.

    First all that do not wait for `step()`, then those that do, each in the plan's order. None
    waits for one behind it: a message's predecessor in its chain has a smaller index, and waits
    for `step()` only if it does.
    """
    messages = plan.messages
    return sorted(range(len(messages)), key=lambda index: (messages[index].carries_values, index))
