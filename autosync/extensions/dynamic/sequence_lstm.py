"""A layer of an LSTM over sequences of any length, as a vertex function."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync.extensions.dynamic.frontier_vertices import Vertices
from autosync.extensions.dynamic.vertex_function import VertexFunction


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
        gates = vertices.pull() + vertices.linear(h, self.weight_hh_l0)
        write, keep, new, show = gates.chunk(4, dim=1)
        c = torch.sigmoid(keep) * c + torch.sigmoid(write) * torch.tanh(new)
        h = torch.sigmoid(show) * torch.tanh(c)
        vertices.scatter(torch.cat((h, c), dim=1))
        vertices.push(h)
