"""One evaluation of a vertex function over a batch, and its backward pass, task by task.

Algorithm 6 of the thesis: the forward pass pushes each frontier on a stack, the backward pass pops
them. States and their gradients lie in one buffer each, in the order of evaluation, so that a
frontier's are contiguous (algorithm 7); only a gather copies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.dynamic.frontier_schedule import FrontierSchedule
from autosync.extensions.dynamic.frontier_vertices import Vertices
from autosync.extensions.dynamic.lazy_gradients import LazyGradients


class Evaluation:
    """parameters: of the vertex function, those with a gradient. records: keep what a backward
    pass needs."""

    def __init__(
        self,
        vertex: Callable[[Vertices], None],
        schedule: FrontierSchedule,
        state_size: int,
        state_dtype: torch.dtype,
        parameters: tuple[Tensor, ...],
        records: bool,
    ):
        self.records = records
        self.lazy = LazyGradients(parameters)
        self._vertex = vertex
        self._schedule = schedule
        self._state_size = state_size
        self._state_dtype = state_dtype
        self._parameters = parameters
        self._known = {id(parameter) for parameter in parameters}
        self._stack: list[Vertices] | None = []
        self._children: dict[int, Tensor] = {}

    def forward(self, pulled: Tensor, wants_pulled: bool) -> Tensor:
        """What the vertices push, `(N, ...)`; pulled `(N, ...)`, both by rows of the schedule.
        wants_pulled: backward returns a gradient for it."""
        schedule = self._schedule
        self._pulled, self._wants_pulled = pulled, wants_pulled
        self._edge_child = torch.from_numpy(schedule.edge_child).to(pulled.device)
        self._edge_parent = torch.from_numpy(schedule.edge_parent).to(pulled.device)
        size = (len(schedule.order) + 1, self._state_size)  # the last row: of no child
        self._states = pulled.new_zeros(size, dtype=self._state_dtype)
        outputs = []
        for task, start, stop in schedule.tasks():
            vertices = Vertices(self, task, start, stop)
            with torch.set_grad_enabled(self.records):
                self._vertex(vertices)
            outputs.append(self._evaluated(vertices))
        self._children.clear()
        return torch.cat(outputs)

    def _evaluated(self, vertices: Vertices) -> Tensor:
        if vertices.output is None:
            raise _refused("pushed nothing", vertices)
        if vertices.state is not None:
            expected = (vertices.count, self._state_size)
            if vertices.state.shape != expected:
                shape = tuple(vertices.state.shape)
                raise _refused(f"scattered a state of shape {shape}, not {expected}", vertices)
            self._states[vertices.start : vertices.stop] = vertices.state.detach()
        if self.records:
            if vertices.task < 2:  # without children, and with: every vertex is one of the two
                self._refuse_strangers(vertices)
            assert self._stack is not None
            self._stack.append(vertices)
        return vertices.output.detach()

    def pulled_rows(self, start: int, stop: int) -> Tensor:
        rows = self._pulled[start:stop].detach()
        return rows.requires_grad_() if self.records and self._wants_pulled else rows

    def state_rows(self, rows: Tensor) -> Tensor:
        return self._states.index_select(0, rows).detach()

    def child_rows(self, place: int, start: int, stop: int) -> Tensor:
        if place not in self._children:
            rows = torch.from_numpy(self._schedule.children_at(place))
            self._children[place] = rows.to(self._pulled.device)
        return self._children[place][start:stop]

    def edges(self, task: int) -> tuple[Tensor, Tensor]:
        bounds = self._schedule.edge_bounds
        here = slice(int(bounds[task]), int(bounds[task + 1]))
        return self._edge_child[here], self._edge_parent[here] - int(self._schedule.bounds[task])

    def backward(self, given: Tensor) -> tuple[Tensor | None, list[Tensor | None]]:
        """The gradients of what was pulled and of the parameters; given `(N, ...)` is that of what
        was pushed. Once only: what a frontier has kept goes with its backward pass."""
        if self._stack is None:
            raise RuntimeError("Trying to backward through a vertex function a second time.")
        stack, self._stack = self._stack, None
        of_states = torch.zeros_like(self._states)
        of_pulled = torch.zeros_like(self._pulled) if self._wants_pulled else None
        totals: list[Tensor | None] = [None] * len(self._parameters)
        while stack:
            vertices = stack.pop()
            of_external, of_gathered, eager = self._frontier_backward(vertices, given, of_states)
            for (rows, _), gradient in zip(vertices.gathered, of_gathered, strict=True):
                if gradient is not None:
                    of_states.index_add_(0, rows, gradient)
            if of_pulled is not None and of_external is not None:
                of_pulled[vertices.start : vertices.stop] = of_external
            totals = [_sum(*pair) for pair in zip(totals, eager, strict=True)]
        lazy = [self.lazy.of(parameter) for parameter in self._parameters]
        return of_pulled, [_sum(*pair) for pair in zip(totals, lazy, strict=True)]

    def _frontier_backward(
        self, vertices: Vertices, given: Tensor, of_states: Tensor
    ) -> tuple[Tensor | None, list[Tensor | None], list[Tensor | None]]:
        """Gradients of what was pulled, of what was gathered, and of the parameters that are not
        left to `lazy`."""
        rows = slice(vertices.start, vertices.stop)
        outputs, gradients = [], []
        for output, buffer in ((vertices.output, given), (vertices.state, of_states)):
            if output is not None and output.requires_grad:
                outputs.append(output)
                gradients.append(buffer[rows].to(output.dtype))
        leaves = [states for _, states in vertices.gathered]
        if vertices.external is not None and vertices.external.requires_grad:
            leaves.append(vertices.external)
        if not outputs:
            return None, [None] * len(vertices.gathered), [None] * len(self._parameters)
        wanted = [*leaves, *self._parameters]
        found: list[Tensor | None] = [
            *torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
        ]
        of_gathered = found[: len(vertices.gathered)]
        of_external = found[len(of_gathered)] if len(leaves) > len(of_gathered) else None
        return of_external, of_gathered, found[len(leaves) :]

    def _refuse_strangers(self, vertices: Vertices) -> None:
        """Gradients go to what was pulled or gathered and to the parameters, and nowhere else."""
        known = self._known | {id(states) for _, states in vertices.gathered}
        known.add(id(vertices.external))
        seen: set[Any] = set()
        waiting = [t.grad_fn for t in (vertices.output, vertices.state) if t is not None]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None and id(leaf) not in known:
                raise NotSupported(
                    f"the vertex function uses a tensor of shape {tuple(leaf.shape)} that needs a "
                    "gradient, and is neither pulled, gathered nor a parameter of its module.",
                    thing="vertex",
                    value=tuple(leaf.shape),
                    remedy="Make it a parameter of the vertex function, or pull it.",
                )
            waiting.extend(following for following, _ in node.next_functions)


class BatchedEvaluation(torch.autograd.Function):
    """To the script's autograd graph an evaluation is one operation."""

    @staticmethod
    def forward(ctx: Any, evaluation: Evaluation, pulled: Tensor, *parameters: Tensor) -> Tensor:
        ctx.evaluation = evaluation
        return evaluation.forward(pulled, ctx.needs_input_grad[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        of_pulled, of_parameters = ctx.evaluation.backward(given)
        return None, of_pulled, *of_parameters


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _refused(what: str, vertices: Vertices) -> InvalidInput:
    return InvalidInput(
        f"the vertex function {what}, on a frontier of {vertices.count} vertices.",
        thing="vertex",
        value=what,
        remedy="Every frontier pushes once; a state is (vertices, state_size).",
    )
