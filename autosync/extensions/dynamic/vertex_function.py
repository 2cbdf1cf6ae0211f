"""Vertex functions: what is computed at a vertex, written once for many of them at a time."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.dynamic.batched_evaluation import BatchedEvaluation, Evaluation
from autosync.extensions.dynamic.frontier_vertices import Vertices
from autosync.extensions.dynamic.input_graphs import InputGraphs


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
    def vertex(self, vertices: Vertices) -> None:
        """Pull, gather, compute, scatter and push, once for each frontier. Everything that needs
        a gradient comes from `vertices` or is a parameter of this module."""

    def prepare(self, external: Tensor) -> Tensor:
        """What `pull` reads, made of the external input of all vertices, `(N, ...)`, at once: what
        depends on no other vertex has its place here (in Cavs' words, eager operators)."""
        return external

    def forward(self, graphs: InputGraphs, external: Tensor) -> Tensor:
        """What the vertices push, `(N, ...)`.

        external: `(N, ...)`, a row for each vertex in the order of the graphs, as is the result.

        The gradients of the module's parameters are complete together, when all frontiers have
        had their backward pass. There is no second derivative.

        Raises:
            InvalidInput: the rows are not those of the graphs' vertices; edges form a cycle; a
                vertex has too many children; a frontier scatters or pushes what cannot be.
            NotSupported: a parameter has a gradient hook of its own; `vertex` uses a tensor with a
                gradient that is neither pulled, gathered nor a parameter of this module.
        """
        self._check(graphs, external)
        named = {name: p for name, p in self.named_parameters() if p.requires_grad}
        _refuse_hooks(named)
        external = self.prepare(external)
        needs_gradient = bool(named) or external.requires_grad
        evaluation = Evaluation(
            self.vertex,
            graphs.schedule,
            self.state_size,
            _state_dtype(self, external),
            tuple(named.values()),
            records=torch.is_grad_enabled() and needs_gradient,
        )
        order = torch.from_numpy(graphs.schedule.order).to(external.device)
        row = torch.from_numpy(graphs.schedule.row).to(external.device)
        pulled = external.index_select(0, order)
        pushed: Tensor = BatchedEvaluation.apply(  # type: ignore[no-untyped-call]
            evaluation, pulled, *named.values()
        )
        return pushed.index_select(0, row)

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


def _refuse_hooks(named: dict[str, nn.Parameter]) -> None:
    for name, parameter in named.items():
        if parameter._backward_hooks:
            raise NotSupported(
                f"parameter {name!r} has a hook by register_hook, which every frontier would call.",
                thing=f"parameter {name}",
                remedy="Register it with register_post_accumulate_grad_hook, which is called once.",
            )


def _state_dtype(module: nn.Module, external: Tensor) -> torch.dtype:
    if external.dtype.is_floating_point:
        return external.dtype
    return next((p.dtype for p in module.parameters()), torch.get_default_dtype())
