"""LSTMs as vertex functions: over sequences of any length, and over trees (Tai et al. 2015; thesis,
figure 6.7)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync.extensions.dynamic.vertex_function import VertexFunction, Vertices


class SequenceLSTM(VertexFunction):
    """torch's `nn.LSTM(inputs, cells)`, with its parameters by name, over `chains`.

    Inputs `(N, inputs)`, the words of all sequences one after another; outputs h `(N, cells)`. A
    state is [h, c]. Gates in torch's order i, f, g, o.
    """

    def __init__(self, inputs: int, cells: int):
        super().__init__(state_size=2 * cells, most_children=1)
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * cells, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * cells, cells))
        self.bias_ih_l0 = nn.Parameter(torch.empty(4 * cells))
        self.bias_hh_l0 = nn.Parameter(torch.empty(4 * cells))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(cells), 1 / math.sqrt(cells))

    def prepare(self, external: Tensor) -> Tensor:
        return functional.linear(external, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)

    def vertex(self, vertices: Vertices) -> None:
        h, c = vertices.gather(0).chunk(2, dim=1)
        gates = vertices.pull() + functional.linear(h, self.weight_hh_l0)
        write, keep, new, show = gates.chunk(4, dim=1)
        c = torch.sigmoid(keep) * c + torch.sigmoid(write) * torch.tanh(new)
        h = torch.sigmoid(show) * torch.tanh(c)
        vertices.scatter(torch.cat((h, c), dim=1))
        vertices.push(h)


class ChildSumTreeLSTM(VertexFunction):
    """A vertex may have any number of children, whose order does not count.

    Inputs `(N, inputs)`, one for each vertex (zeros where it has none); outputs h `(N, cells)`. A
    state is [h, c]. Gates in the order i, o, u, f.
    """

    def __init__(self, inputs: int, cells: int):
        super().__init__(state_size=2 * cells)
        self.cells = cells
        self.input = nn.Linear(inputs, 4 * cells)
        self.recurrent = nn.Linear(cells, 3 * cells, bias=False)
        self.forget = nn.Linear(cells, cells, bias=False)

    def prepare(self, external: Tensor) -> Tensor:
        projected: Tensor = self.input(external)
        return projected

    def vertex(self, vertices: Vertices) -> None:
        of_gates, of_forget = vertices.pull().split((3 * self.cells, self.cells), dim=1)
        states, parents = vertices.gather_all()
        child_h, child_c = states.chunk(2, dim=1)
        h = vertices.sum_of_children(child_h)
        gates = of_gates + functional.linear(h, self.recurrent.weight)
        forget = torch.sigmoid(
            of_forget.index_select(0, parents) + functional.linear(child_h, self.forget.weight)
        )
        write, show, new = gates.chunk(3, dim=1)
        kept = vertices.sum_of_children(forget * child_c)
        c = torch.sigmoid(write) * torch.tanh(new) + kept
        h = torch.sigmoid(show) * torch.tanh(c)
        vertices.scatter(torch.cat((h, c), dim=1))
        vertices.push(h)
