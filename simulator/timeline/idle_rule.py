"""What is under way while all-gathers wait for an idle wire: what the runtime's `IdleWire` counts.
Machine code, without the interpreter lock; see `event_loop`."""

# numba infers the types of what it compiles, tuples of arrays among them
# mypy: allow-untyped-defs

from numba import njit

from autosync.codes import Channel
from autosync.simulator.timeline.compute_clock import (
    FIRST_IN_FLIGHT,
    FIRST_MISSING,
    GATHERS_IN_FLIGHT,
)

GATHER = int(Channel.GATHER)


@njit(nogil=True, _nrt=False)
def count_first_halves(plan, in_flight, begin, stop):
    """Before a plan that has such all-gathers is played; first halves are all messages but these
    and what carries new values."""
    for message in range(begin, stop):
        if plan.channel[message] != GATHER and not plan.carries_values[message]:
            in_flight.tally[FIRST_MISSING] += 1


@njit(nogil=True, _nrt=False, inline="always")
def depart(plan, in_flight, message):
    """A message is issued."""
    if in_flight.tally[FIRST_MISSING] > 0:
        if plan.channel[message] == GATHER:
            in_flight.tally[GATHERS_IN_FLIGHT] += 1
        elif not plan.carries_values[message]:
            in_flight.tally[FIRST_IN_FLIGHT] += 1


@njit(nogil=True, _nrt=False, inline="always")
def settle(plan, in_flight, message):
    """A message has landed. Behind the last first half nothing is counted any more."""
    if in_flight.tally[FIRST_MISSING] > 0:
        if plan.channel[message] == GATHER:
            in_flight.tally[GATHERS_IN_FLIGHT] -= 1
        elif not plan.carries_values[message]:
            in_flight.tally[FIRST_IN_FLIGHT] -= 1
            in_flight.tally[FIRST_MISSING] -= 1
