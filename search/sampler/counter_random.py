"""Counter-based random numbers for compiled kernels.

A stream is named by (seed, index, purpose) and its words are numbered, so any proposal can be drawn
alone, in any order, on any thread. Hash: the finalizer of splitmix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014).
"""

from typing import Any

import numpy as np
from numba import njit

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@njit(nogil=True, _nrt=False)
def mix(bits: Any) -> Any:
    """A bijection of 64 bits that lets every input bit reach every output bit."""
    bits = (bits ^ (bits >> _30)) * _FIRST
    bits = (bits ^ (bits >> _27)) * _SECOND
    return bits ^ (bits >> _31)


@njit(nogil=True, _nrt=False)
def stream(seed: np.uint64, index: np.uint64, purpose: int) -> Any:
    """The name of a stream; `purpose` keeps the stages of one proposal independent."""
    return mix(mix(mix(seed + _GAMMA) ^ index) + np.uint64(purpose) * _GAMMA)


@njit(nogil=True, _nrt=False)
def word(name: np.uint64, number: int) -> Any:
    """Word `number` of a stream: 64 bits."""
    return mix(name + np.uint64(number) * _GAMMA)


@njit(nogil=True, _nrt=False)
def draw(name: np.uint64, number: int, count: int) -> Any:
    """Word `number` of a stream as an integer in [0, count), count < 2**32."""
    return np.int64(((word(name, number) >> _32) * np.uint64(count)) >> _32)
