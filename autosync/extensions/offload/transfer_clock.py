"""What a schedule costs: compute and both directions of the link, played moment by moment."""

import numpy as np

from autosync.extensions.offload.idle_spans import F64, HostLink, by_moment
from autosync.extensions.offload.scheduling import SwapSchedule


def stall_seconds(schedule: SwapSchedule, seconds: F64, link: HostLink) -> float:
    """How long compute waits for transfers in one pass.

    seconds f64[M]: of compute, moment by moment. Each direction carries one tensor at a time, in
    the order of its moments; a tensor returns when it has left.
    """
    spans = schedule.spans
    numbers = np.arange(len(spans))
    copies, releases, fetches, uses = (
        by_moment(schedule.copied, spans.final, numbers),
        by_moment(schedule.copied, schedule.release, numbers),
        by_moment(~schedule.kept, schedule.fetch, numbers),
        by_moment(~schedule.kept, spans.end, numbers),
    )
    gone, here = [0.0] * len(spans), [0.0] * len(spans)
    of_tensor: dict[int, float] = {}
    sizes = spans.size_bytes.tolist()
    now = out_free = in_free = stalled = 0.0
    for moment, computing in enumerate(seconds.tolist()):
        for span in copies[moment]:
            out_free = max(now, out_free) + link.seconds(sizes[span])
            gone[span] = of_tensor[int(spans.tensor[span])] = out_free
        for span in releases[moment]:
            stalled += max(gone[span] - now, 0.0)
            now = max(now, gone[span])
        for span in fetches[moment]:
            begin = max(now, in_free, of_tensor[int(spans.tensor[span])])
            here[span] = in_free = begin + link.seconds(sizes[span])
        for span in uses[moment]:
            stalled += max(here[span] - now, 0.0)
            now = max(now, here[span])
        now += computing
    return stalled
