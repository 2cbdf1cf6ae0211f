"""The vertices of one frontier, as a vertex function sees them."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from autosync.errors import InvalidInput
from autosync.extensions.dynamic.lazy_gradients import LazyGradients


class FrontierInputs(Protocol):
    """What an evaluation hands to a frontier. Rows are those of its schedule."""

    lazy: LazyGradients
    records: bool

    def pulled_rows(self, start: int, stop: int) -> Tensor: ...

    def state_rows(self, rows: Tensor) -> Tensor: ...

    def child_rows(self, place: int, start: int, stop: int) -> Tensor: ...

    def edges(self, task: int) -> tuple[Tensor, Tensor]: ...


class Vertices:
    """M vertices that are evaluated together: rows `start` to `stop` of task `task`.

    state, output: what they have scattered and pushed, None until then.
    external, gathered: the leaves of this frontier's autograd graph: what was pulled, and what was
        gathered with the rows that it came from.
    """

    def __init__(self, inputs: FrontierInputs, task: int, start: int, stop: int):
        self._inputs = inputs
        self._edges: tuple[Tensor, Tensor] | None = None
        self.task = task
        self.start = start
        self.stop = stop
        self.state: Tensor | None = None
        self.output: Tensor | None = None
        self.external: Tensor | None = None
        self.gathered: list[tuple[Tensor, Tensor]] = []

    @property
    def count(self) -> int:
        """M."""
        return self.stop - self.start

    def pull(self) -> Tensor:
        """The rows of the external input at these vertices, `(M, ...)`."""
        if self.external is None:
            self.external = self._inputs.pulled_rows(self.start, self.stop)
        return self.external

    def gather(self, place: int) -> Tensor:
        """The state of child number `place`, from 0, of each vertex, `(M, state_size)`; zeros
        where it has no such child."""
        return self._gathered(self._inputs.child_rows(place, self.start, self.stop))

    def gather_all(self) -> tuple[Tensor, Tensor]:
        """The states of all children of all vertices, `(E, state_size)`, and to which of these M
        vertices each belongs, i64 `(E,)`, ascending."""
        rows, parents = self._all_edges()
        return self._gathered(rows), parents

    def sum_of_children(self, values: Tensor) -> Tensor:
        """For each vertex the sum over its children, `(M, ...)`, of values as `gather_all` orders
        them, `(E, ...)`."""
        zeros = values.new_zeros(self.count, *values.shape[1:])
        return zeros.index_add(0, self._all_edges()[1], values)

    def scatter(self, state: Tensor) -> None:
        """Hand a state, `(M, state_size)`, to the parents of each vertex."""
        if self.state is not None:
            raise _refused("scatter", "is called twice", tuple(state.shape))
        self.state = state

    def push(self, output: Tensor) -> None:
        """Hand an output, `(M, ...)`, to what is outside of the input graphs."""
        if self.output is not None or output.shape[:1] != (self.count,):
            why = f"takes one row for each of the {self.count} vertices, once"
            raise _refused("push", why, tuple(output.shape))
        self.output = output

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`torch.nn.functional.linear`. Where x is a matrix, weight and bias are trained parameters
        of the vertex function, and autocast is off, their gradients are computed once, over all
        vertices of the batch; else in each frontier, as by any other operation."""
        inputs = self._inputs
        waits = inputs.records and x.dim() == 2 and inputs.lazy.takes(weight, bias)
        if waits and not torch.is_autocast_enabled(x.device.type):
            return inputs.lazy.linear(x, weight, bias)
        return functional.linear(x, weight, bias)

    def _all_edges(self) -> tuple[Tensor, Tensor]:
        if self._edges is None:
            self._edges = self._inputs.edges(self.task)
        return self._edges

    def _gathered(self, rows: Tensor) -> Tensor:
        states = self._inputs.state_rows(rows)
        if self._inputs.records and self.task > 0:  # the first task's vertices have no children
            states.requires_grad_()
            self.gathered.append((rows, states))
        return states


def _refused(what: str, why: str, value: object) -> InvalidInput:
    return InvalidInput(
        f"{what} {why}: it was given {value}.",
        thing=what,
        value=value,
        remedy="See the methods of autosync.extensions.dynamic.frontier_vertices.Vertices.",
    )
