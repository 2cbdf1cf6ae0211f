"""A testbed measures itself: all-reduces of three sizes, as the ring that they are to its links.

A shaper lets a burst pass at once after a pause, so no single small message is held to a rate. A
stream of all-reduces is, whatever their size: while a link waits for its next piece it saves what
it may send at once then, as long as a piece takes longer than the way to the next node. So every
size runs as a stream, behind bytes that use the bursts up and an all-reduce that sets the pace, and
must take its bytes at the slowest link's rate. Below the smallest size it is the processors that
count, of which the file says nothing: the pairs' latencies tell.
"""

from dataclasses import dataclass
from statistics import median

from autosync.trials.testbed.link_rates import TOLERANCE, TRIES, Rates
from autosync.trials.testbed.link_shaping import BURST_BYTES
from autosync.trials.testbed.rate_probes import InaccurateLink, RateProbes

LINE_SECONDS = ((0.08, 1), (0.03, 3), (0.01, 8))
"""How long an all-reduce of each size occupies the slowest link; how many are timed together."""

SETTLING_SECONDS = 0.05
"""Until a new connection has found its rate."""


@dataclass(frozen=True, slots=True)
class AllReduceTime:
    """size_bytes: that each node contributes. seconds: of one all-reduce. error: relative to its
    bytes at the slowest link's rate. slowest: the nodes (indices) whose link held it up."""

    size_bytes: int
    seconds: float
    error: float
    slowest: tuple[int, int]


def measured_all_reduces(probes: RateProbes, expected: Rates) -> tuple[AllReduceTime, ...]:
    """Largest first; of up to `TRIES` streams the one nearest the file counts, as for links.

    expected: `(nodes, nodes)` payload bytes a second, the file's times s / k.
    """
    count = len(expected)
    if count < 2:
        return ()
    rate = min(float(expected[node, (node + 1) % count]) for node in range(count))
    best: list[AllReduceTime] = []
    for _ in range(TRIES):
        times = _streams(probes, count, rate)
        pairs = zip(best or times, times, strict=True)
        best = [min(pair, key=lambda one: abs(one.error)) for pair in pairs]
        if all(abs(one.error) <= TOLERANCE for one in best):
            break
    return tuple(best)


def _streams(probes: RateProbes, count: int, rate: float) -> list[AllReduceTime]:
    steps = 2 * (count - 1)
    pieces = [max(1, round(seconds * rate / steps)) for seconds, _ in LINE_SECONDS]
    # In a single step no link waits for another, so each uses its burst up.
    settling = SETTLING_SECONDS + 2 * BURST_BYTES / rate  # both shapers' bursts
    rounds = [(round(settling * rate), 1)]
    for piece, (_, times) in zip(pieces, LINE_SECONDS, strict=True):
        rounds += [(piece, steps), (piece, steps * times)]
    answers = probes.ring(rounds)
    found = []
    for number, piece in enumerate(pieces):
        timed = 2 + 2 * number
        timed_steps = rounds[timed][1]
        lasted = median(node["ended"][timed] - node["ended"][timed - 1] for node in answers)
        held_up = max(range(count), key=lambda node: answers[node]["arriving"][timed])
        found.append(
            AllReduceTime(
                size_bytes=piece * count,
                seconds=lasted * steps / timed_steps,
                error=lasted * rate / (timed_steps * piece) - 1,
                slowest=((held_up - 1) % count, held_up),
            )
        )
    return found


def refuse_inaccurate_all_reduces(times: tuple[AllReduceTime, ...], testbed_id: str) -> None:
    """Raises InaccurateLink naming the worst size and its slowest link, when it is more than 5 %
    off."""
    worst = max(times, key=lambda one: abs(one.error), default=None)
    if worst is None or abs(worst.error) <= TOLERANCE:
        return
    sender, to = worst.slowest
    raise InaccurateLink(
        f"testbed {testbed_id}: an all-reduce of {worst.size_bytes / 1e3:.0f} KB takes "
        f"{worst.seconds * 1e3:.1f} ms where the file's rates say "
        f"{worst.seconds / (1 + worst.error) * 1e3:.1f}; it waits for the link from node {sender} "
        f"to node {to}.",
        thing=f"link {sender} -> {to}",
        value=worst.error,
        remedy="Stop what else loads this machine, or choose a smaller byte scale or a larger "
        "time scale.",
    )
