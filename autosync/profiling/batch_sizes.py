"""Profiles fitted to profiles at several batch sizes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Profile
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph

Floats = NDArray[np.float64]


def profile_at_batch(graph: ModelGraph, profiles: Sequence[Profile]) -> Profile:
    """Each operation's seconds at the batch size of `graph` on the line fitted to its seconds at
    the batch sizes of `profiles`, all of this model on one device. No line falls with the batch or
    begins below zero. An estimate; its note names the batch sizes and the largest residual.

    Raises:
        InvalidInput: fewer than two batch sizes, or profiles of another device or another model.
    """
    batches = np.array([profile.batch_size for profile in profiles], dtype=np.float64)
    if len(set(batches.tolist())) < 2:
        raise _not_joined("batch_size", batches.tolist(), "a line needs two different batch sizes")
    devices = {profile.device for profile in profiles}
    if len(devices) > 1:
        raise _not_joined("device", sorted(devices), "profiles of one device can be joined")
    passes = [each for p in profiles for each in (p.forward_seconds, p.backward_seconds)]
    counts = {len(seconds) for seconds in passes}
    if counts != {len(graph.operations)}:
        raise _not_joined("operations", sorted(counts), f"graph {graph.name!r} has another number")
    wanted = float(graph.batch_size)
    forward = _on_lines(batches, [p.forward_seconds for p in profiles], wanted)
    backward = _on_lines(batches, [p.backward_seconds for p in profiles], wanted)
    whole = np.array([[profile.compute_seconds] for profile in profiles])
    residual = max(
        abs(_on_lines(batches, whole, batch)[0] / seconds[0] - 1)
        for batch, seconds in zip(batches, whole, strict=True)
    )
    flops = _on_lines(batches, [[profile.forward_flops] for profile in profiles], wanted)[0]
    sizes = ", ".join(f"{batch:g}" for batch in sorted(set(batches.tolist())))
    return Profile(
        device=profiles[0].device,
        batch_size=graph.batch_size,
        forward_seconds=tuple(forward.tolist()),
        backward_seconds=tuple(backward.tolist()),
        update_seconds=float(np.median([profile.update_seconds for profile in profiles])),
        source="estimated",
        note=f"by regression over batch sizes {sizes}, whole steps within {residual:.0%} of it",
        forward_flops=round(float(flops)) if all(p.forward_flops for p in profiles) else 0,
    )


def _on_lines(batches: Floats, seconds: object, wanted: float) -> Floats:
    """Values at `wanted` of lines through seconds `(profiles, operations)`: `(operations,)`."""
    values = np.array(seconds, dtype=np.float64)
    centre = batches - batches.mean()
    mean = values.mean(axis=0)
    slope = np.maximum(centre @ values / (centre @ centre), 0.0)
    through_zero = batches @ values / (batches @ batches)
    falls_short = mean - slope * batches.mean() < 0
    fitted = mean + slope * (wanted - batches.mean())
    result: Floats = np.where(falls_short, through_zero * wanted, fitted)
    return result


def _not_joined(thing: str, value: object, why: str) -> InvalidInput:
    return InvalidInput(
        f"the profiles' {thing} are {value}: {why}.",
        thing=f"profiles, {thing}",
        value=value,
        remedy="Give `autosync profile` files of this model, at two or more batch sizes.",
    )
