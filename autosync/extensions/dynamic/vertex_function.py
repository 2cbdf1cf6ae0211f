"""Vertex functions: what is computed at a vertex, written once and run on many of them at a time.

A batch is evaluated frontier by frontier (Cavs; thesis, algorithm 6). The states of all vertices
are in one buffer in the order of evaluation. A frontier writes a contiguous part of it, and only a
gather copies (algorithm 7). autograd records every frontier as usual. The gradients of states are
summed in a second buffer of the same layout.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from autosync.errors import InvalidInput
from autosync.extensions.dynamic.input_graphs import FrontierSchedule, InputGraphs


class VertexFunction(nn.Module, ABC):
    """A vertex function F (Cavs, thesis section 6.4): `vertex` computes it on the vertices of a
    frontier; the module, called, on all vertices of a batch of input graphs.

    state_size: numbers a vertex scatters to its parents.
    most_children: that it gathers from; graphs with more are refused. None: from any number.
    """

    def __init__(self, state_size: int, most_children: int | None = None):
        super().__init__()
        self.state_size = state_size
        self.most_children = most_children

    @abstractmethod
    def vertex(self, vertices: "Vertices") -> None:
        """Pull, gather, compute, scatter and push, once for each frontier."""

    def prepare(self, external: Tensor) -> Tensor:
        """What `pull` reads, made of the external input of all vertices, `(N, ...)`, at once: what
        depends on no other vertex has its place here (in Cavs' words, eager operators)."""
        return external

    def forward(self, graphs: InputGraphs, external: Tensor) -> Tensor:
        """What the vertices push, `(N, ...)`.

        external: `(N, ...)`, a row for each vertex in the order of the graphs, as is the result.

        There is no second derivative through states.

        Raises:
            InvalidInput: the rows are not those of the graphs' vertices; edges form a cycle; a
                vertex has too many children; a frontier scatters or pushes what cannot be.
        """
        self._check(graphs, external)
        external = self.prepare(external)
        order, row = (
            torch.from_numpy(rows).to(external.device)
            for rows in (graphs.schedule.order, graphs.schedule.row)
        )
        size = (graphs.vertices + 1, self.state_size)
        values = external.new_zeros(size, dtype=_state_dtype(self, external))
        evaluation = _Evaluation(graphs.schedule, values)
        tasks = list(graphs.schedule.tasks())
        pulled = external.index_select(0, order).split([stop - start for _, start, stop in tasks])
        outputs = []
        for (task, start, stop), rows in zip(tasks, pulled, strict=True):
            vertices = Vertices(evaluation, task, slice(start, stop), rows)
            self.vertex(vertices)
            outputs.append(vertices.finished())
        return _applied(_Push, evaluation.states, evaluation.token, *outputs).index_select(0, row)

    def _check(self, graphs: InputGraphs, external: Tensor) -> None:
        if external.shape[:1] != (graphs.vertices,):
            raise InvalidInput(
                f"external has shape {tuple(external.shape)}, the graphs {graphs.vertices} "
                "vertices.",
                thing="external",
                value=tuple(external.shape),
                remedy="Give one row for each vertex, in the order of the graphs.",
            )
        if self.most_children is not None and graphs.most_children > self.most_children:
            raise InvalidInput(
                f"a vertex has {graphs.most_children} children, {type(self).__name__} gathers from "
                f"{self.most_children} at most.",
                thing="graphs",
                value=graphs.most_children,
                remedy="Use a vertex function that gathers from all, such as ChildSumTreeLSTM.",
            )


class _States:
    """values `(N + 1, state_size)`: of vertices by rows of the schedule; the last row stays zero,
    for a child that a vertex does not have. gradients: of the backward pass that runs, likewise.
    Backward functions hold it, so it holds no token: that would be a cycle."""

    def __init__(self, values: Tensor):
        self.values = self.gradients = values


class _Evaluation:
    """token: of the last scatter; None before the first."""

    def __init__(self, schedule: FrontierSchedule, values: Tensor):
        self.states = _States(values)
        self.token: Tensor | None = None
        self._schedule = schedule
        self._edge_child = torch.from_numpy(schedule.edge_child).to(values.device)
        self._edge_parent = torch.from_numpy(schedule.edge_parent).to(values.device)
        self._children: dict[int, Tensor] = {}

    def gathered(self, rows: Tensor) -> Tensor:
        if self.token is None:
            return self.states.values.index_select(0, rows)
        return _applied(_Gather, self.states, rows, self.token)

    def children_at(self, place: int) -> Tensor:
        if place not in self._children:
            rows = torch.from_numpy(self._schedule.children_at(place))
            self._children[place] = rows.to(self.states.values.device)
        return self._children[place]

    def edges(self, task: int) -> tuple[Tensor, Tensor]:
        bounds = self._schedule.edge_bounds
        here = slice(int(bounds[task]), int(bounds[task + 1]))
        return self._edge_child[here], self._edge_parent[here] - int(self._schedule.bounds[task])


class Vertices:
    """M vertices that are evaluated together: these rows of task `task`."""

    def __init__(self, evaluation: _Evaluation, task: int, rows: slice, pulled: Tensor):
        self._evaluation = evaluation
        self._task = task
        self._rows = rows
        self._pulled = pulled
        self._token: Tensor | None = None
        self._output: Tensor | None = None
        self.count = len(pulled)

    def pull(self) -> Tensor:
        """The rows of the external input at these vertices, `(M, ...)`."""
        return self._pulled

    def gather(self, place: int) -> Tensor:
        """The state of child number `place`, from 0, of each vertex, `(M, state_size)`; zeros
        where it has no such child."""
        return self._evaluation.gathered(self._evaluation.children_at(place)[self._rows])

    def gather_all(self) -> tuple[Tensor, Tensor]:
        """The states of all children of all vertices, `(E, state_size)`, and to which of these M
        vertices each belongs, i64 `(E,)`, ascending."""
        children, parents = self._evaluation.edges(self._task)
        return self._evaluation.gathered(children), parents

    def sum_of_children(self, values: Tensor) -> Tensor:
        """For each vertex the sum over its children, `(M, ...)`, of values as `gather_all` orders
        them, `(E, ...)`."""
        zeros = values.new_zeros(self.count, *values.shape[1:])
        return zeros.index_add(0, self._evaluation.edges(self._task)[1], values)

    def scatter(self, state: Tensor) -> None:
        """Hand a state, `(M, state_size)`, to the parents of each vertex."""
        evaluation = self._evaluation
        expected = (self.count, evaluation.states.values.shape[1])
        if self._token is not None:
            raise _refused("scattered twice", self.count)
        if state.shape != expected:
            shape = tuple(state.shape)
            raise _refused(f"scattered a state of shape {shape}, not {expected}", self.count)
        self._token = _applied(_Scatter, evaluation.states, self._rows, evaluation.token, state)

    def push(self, output: Tensor) -> None:
        """Hand an output, `(M, ...)`, to what is outside of the input graphs."""
        if self._output is not None:
            raise _refused("pushed twice", self.count)
        if output.shape[:1] != (self.count,):
            raise _refused(f"pushed an output of shape {tuple(output.shape)}", self.count)
        self._output = output

    def finished(self) -> Tensor:
        """What was pushed. Later frontiers gather what was scattered. Raises InvalidInput where
        nothing was pushed."""
        if self._output is None:
            raise _refused("pushed nothing", self.count)
        if self._token is not None:
            self._evaluation.token = self._token
        return self._output


# Tokens are empty tensors that tell autograd in which order to run these backward passes. A scatter
# takes the token of the scatter before it, a gather the token of the last scatter, and the push the
# token of the last scatter of all. So the backward of the push runs first and zeroes the gradients,
# and that of a scatter runs after those of all gathers that may have read its states.


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: _States, rows: slice, token: Tensor | None, state: Tensor
    ) -> Tensor:
        ctx.states, ctx.rows, ctx.dtype = states, rows, state.dtype
        states.values[rows] = state
        return state.new_empty(0, dtype=states.values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[None, None, None, Tensor]:
        return None, None, None, ctx.states.gradients[ctx.rows].to(ctx.dtype)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: _States, rows: Tensor, token: Tensor) -> Tensor:
        ctx.states, ctx.rows = states, rows
        return states.values.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[None, None, None]:
        ctx.states.gradients.index_add_(0, ctx.rows, given)
        return None, None, None


class _Push(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: _States, token: Tensor | None, *outputs: Tensor) -> Tensor:
        ctx.states, ctx.counts = states, [len(output) for output in outputs]
        return torch.cat(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        ctx.states.gradients = torch.zeros_like(ctx.states.values)
        return None, None, *given.split(ctx.counts)


def _applied(function: type[torch.autograd.Function], *given: Any) -> Tensor:
    found: Tensor = function.apply(*given)
    return found


def _refused(what: str, count: int) -> InvalidInput:
    return InvalidInput(
        f"the vertex function {what}, on a frontier of {count} vertices.",
        thing="vertex",
        value=what,
        remedy="A frontier pushes once, a row for each vertex. It scatters a state of (vertices, "
        "state_size) at most once.",
    )


def _state_dtype(module: nn.Module, external: Tensor) -> torch.dtype:
    if external.dtype.is_floating_point:
        return external.dtype
    return next((p.dtype for p in module.parameters()), torch.get_default_dtype())
