"""Gradients of variables beside activations, moment by moment of an iteration."""

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.activation_memory import ActivationCurve

F64 = NDArray[np.float64]


def living_bytes(curve: ActivationCurve, sizes: F64) -> F64:
    """Activations and gradients that stay from their making to the end, `(2, moments)`, without and
    with batch dimension.

    sizes: f64[V], of each variable's gradient.
    """
    held = curve.held.copy()
    begin = np.zeros(held.shape[1])
    np.add.at(begin, curve.gradient_from, sizes)
    held[0] += begin.cumsum()
    np.add.at(held[0], curve.made_at, _adding(curve) * sizes[curve.made_of])
    return held


def most_living(curve: ActivationCurve, sizes: F64, kept: NDArray[np.bool_], share: float) -> F64:
    """The most bytes of activations and gradients that live at a moment, `(n,)`.

    kept: `(n, V)`, whose gradients stay in tensors of their own; others go into a buffer as soon as
    they are whole. sizes: f64[V], of each gradient. share: of the batch, over the even one.
    """
    activations = curve.held[0] + share * curve.held[1]
    times, changes = _changes(curve, sizes, kept)
    held = np.zeros((len(kept), len(times) + 1))
    np.cumsum(changes, axis=1, out=held[:, 1:])
    begun = np.searchsorted(times, np.arange(len(activations)), "right")
    # between two of these times what is held of gradients does not change
    highest = np.full(held.shape[1], -np.inf)
    np.maximum.at(highest, begun, activations)
    most: F64 = (held + highest).max(axis=1)
    if not len(curve.made_at):
        return most
    moments, made = _made(curve, sizes, kept)
    making: F64 = (made + held[:, begun[moments]] + activations[moments]).max(axis=1)
    return np.maximum(most, making)


def moment_gradients(curve: ActivationCurve, sizes: F64, kept: NDArray[np.bool_]) -> F64:
    """Bytes of gradients beside activations at each moment, `(moments,)`, of one strategy.

    kept: `(V,)`; this and sizes as `most_living` has them.
    """
    times, (changes,) = _changes(curve, sizes, kept[None])
    held = np.concatenate(([0.0], changes.cumsum()))
    count = curve.held.shape[1]
    found: F64 = held[np.searchsorted(times, np.arange(count), "right")]
    if len(curve.made_at):
        moments, (made,) = _made(curve, sizes, kept[None])
        found[moments] += made
    return found


def _made(
    curve: ActivationCurve, sizes: F64, kept: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], F64]:
    """The moments in which gradients are made, `(m,)`, and what that takes for itself, `(n, m)`."""
    at_once = ~(kept | _made_in_parts(curve, len(sizes)))
    tensors = np.where(at_once[:, curve.made_of], 1.0, _adding(curve))
    in_time = np.argsort(curve.made_at, kind="stable")
    moments, starts = np.unique(curve.made_at[in_time], return_index=True)
    made = np.add.reduceat((tensors * sizes[curve.made_of])[:, in_time], starts, axis=1)
    return moments, made


def _changes(
    curve: ActivationCurve, sizes: F64, kept: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], F64]:
    """When gradients' tensors begin and end, in time, `(2V,)`, and by how many bytes what is held
    changes then, `(n, 2V)`. Those of a tied variable are added up before they go into a buffer."""
    in_parts = _made_in_parts(curve, len(sizes))
    last = curve.gradient_from.copy()
    np.maximum.at(last, curve.made_of, curve.made_at)
    begins = np.where(kept | in_parts, sizes, 0.0)
    ends = np.where(in_parts & ~kept, sizes, 0.0)
    times = np.concatenate((curve.gradient_from, last + 1))
    order = np.argsort(times, kind="stable")
    return times[order], np.hstack((begins, -ends))[:, order]


def _made_in_parts(curve: ActivationCurve, variables: int) -> NDArray[np.bool_]:
    """`(V,)`: of tied variables, whose gradient several operations make."""
    found: NDArray[np.bool_] = np.bincount(curve.made_of, minlength=variables) > 1
    return found


def _adding(curve: ActivationCurve) -> F64:
    """`(K,)`: tensors that each making needs beside the gradient so far. The first needs none; one
    that is added to an earlier needs one, and another where their sum is a tensor of its own."""
    again = curve.made_at > curve.gradient_from[curve.made_of]
    return again * (1.0 + curve.summed_apart)
