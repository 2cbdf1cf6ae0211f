"""The models of autosync.extensions.dynamic as one writes them without it: a vertex at a time."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from autosync.extensions.dynamic.input_graphs import InputGraphs
from autosync.extensions.dynamic.lstm import ChildSumTreeLSTM, SequenceLSTM

State = tuple[Tensor, Tensor]
"""h and c of a vertex, `(cells,)` each."""


def child_sum(model: ChildSumTreeLSTM, x: Tensor, children: list[State]) -> State:
    zeros = x.new_zeros(model.cells)
    write, show, new, forget = model.input(x).chunk(4)
    h = sum((h for h, _ in children), zeros)
    i, o, u = model.recurrent(h).chunk(3)
    c = torch.sigmoid(write + i) * torch.tanh(new + u)
    for child_h, child_c in children:
        c = c + torch.sigmoid(forget + model.forget(child_h)) * child_c
    return torch.sigmoid(show + o) * torch.tanh(c), c


def sequence(model: SequenceLSTM, x: Tensor, children: list[State]) -> State:
    zeros = x.new_zeros(model.state_size // 2)
    h, c = children[0] if children else (zeros, zeros)
    gates = nn.functional.linear(x, model.weight_ih_l0, model.bias_ih_l0)
    gates = gates + nn.functional.linear(h, model.weight_hh_l0, model.bias_hh_l0)
    i, f, g, o = gates.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


CELLS: dict[type[nn.Module], Callable[..., State]] = {
    ChildSumTreeLSTM: child_sum,
    SequenceLSTM: sequence,
}


def evaluate_unbatched(model: nn.Module, graphs: InputGraphs, external: Tensor) -> Tensor:
    """What `model(graphs, external)` is, by recursion over each graph."""
    cell = CELLS[type(model)]
    states: dict[int, State] = {}
    waiting = list(range(graphs.vertices))
    while waiting:
        vertex = waiting.pop()
        if vertex in states:
            continue
        children = graphs.child[graphs.first_child[vertex] : graphs.first_child[vertex + 1]]
        missing = [int(child) for child in children if int(child) not in states]
        if missing:
            waiting += [vertex, *missing]
            continue
        states[vertex] = cell(model, external[vertex], [states[int(c)] for c in children])
    return torch.stack([states[vertex][0] for vertex in range(graphs.vertices)])
