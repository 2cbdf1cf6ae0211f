"""A layer of LSTM cells in plain operations, the same on every device."""

import torch
from torch import nn

GATES = 4


class LSTMLayer(nn.Module):
    """(batch, tokens, inputs) -> (batch, tokens, outputs), from a state of `initial_state`.

    cells: width of the state. projected: width of what a step hands on; None where that is the
    state's (Sak et al. 2014).
    """

    def __init__(self, inputs: int, cells: int, projected: int | None = None):
        super().__init__()
        self.cells = cells
        self.outputs = projected or cells
        self.input = nn.Linear(inputs, GATES * cells)
        self.recurrent = nn.Linear(self.outputs, GATES * cells, bias=False)
        self.projection = nn.Linear(cells, projected, bias=False) if projected else nn.Identity()

    def initial_state(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What was handed on and the cells, both 0, for inputs `x`."""
        return x.new_zeros(x.shape[0], self.outputs), x.new_zeros(x.shape[0], self.cells)

    def forward(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Outputs of all steps, and the state after the last."""
        handed_on, cells = state
        outputs = []
        for part in self.input(x).unbind(dim=1):
            gates = (part + self.recurrent(handed_on)).chunk(GATES, dim=-1)
            write, keep, show = (torch.sigmoid(gate) for gate in gates[:3])
            cells = keep * cells + write * torch.tanh(gates[3])
            handed_on = self.projection(show * torch.tanh(cells))
            outputs.append(handed_on)
        return torch.stack(outputs, dim=1), (handed_on, cells)
