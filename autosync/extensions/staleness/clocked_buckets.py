"""The buckets of a plan with clocks: whose they are, and where parameters lie in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from autosync.plan import Plan
from autosync.runtime.layout.segments import Segment, bucket_segments


@dataclass(frozen=True, slots=True)
class ClockedBucket:
    """Values that one rank owns, flat. index: in the plan. owner: a rank. size: elements."""

    index: int
    owner: int
    dtype: torch.dtype
    size: int
    segments: tuple[Segment, ...]

    @property
    def update_tag(self) -> int:
        return 2 * self.index

    @property
    def answer_tag(self) -> int:
        return 2 * self.index + 1

    def gather(self, parameters: Sequence[Tensor], flat: Tensor) -> None:
        """Copy the parameters' values to `flat`, `(size,)`."""
        for segment in self.segments:
            value = parameters[segment.variable].detach()[segment.region]
            flat[segment.start : segment.stop].view(segment.shape).copy_(value)

    def scatter(self, flat: Tensor, parameters: Sequence[Tensor]) -> None:
        """The reverse."""
        for segment in self.segments:
            value = flat[segment.start : segment.stop].view(segment.shape)
            parameters[segment.variable].detach()[segment.region].copy_(value)


def clocked_buckets(plan: Plan, parameters: Sequence[Tensor]) -> list[ClockedBucket]:
    """In the order in which the plan sends them. parameters: of the plan's variables."""
    shapes = [tuple(parameter.shape) for parameter in parameters]
    found = []
    for message in plan.messages:
        if not message.operation.to_owner:
            continue
        segments = bucket_segments(plan, message.bucket, shapes)
        dtypes = [parameters[segment.variable].dtype for segment in segments]
        dtype = reduce(torch.promote_types, dtypes)
        size = segments[-1].stop
        found.append(ClockedBucket(message.bucket, message.root, dtype, size, segments))
    return found
