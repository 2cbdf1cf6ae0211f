"""The state of an optimizer that updates within `step()`: idle while forward and backward run."""

import numpy as np

from autosync.domain import Domain
from autosync.swap_schedule.idle_spans import SMALLEST_BYTES, IdleSpans, spans_of


def idle_states(domain: Domain) -> IdleSpans:
    """On a rank that updates every variable whole. Moments are those of `idle_activations` and,
    last, the optimizer's step, which needs all of it."""
    step = 2 * len(domain.graph.operations)
    sizes = np.repeat(domain.variables.size_bytes, domain.optimizer.state_tensors).tolist()
    worth = (size for size in sizes if size >= SMALLEST_BYTES)
    return spans_of([(float(size), place, 0, 0, step) for place, size in enumerate(worth)])
