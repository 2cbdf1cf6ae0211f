"""DLRM (Naumov et al. 2019, arXiv 1906.00091) for Criteo's Kaggle data, as its authors set it up:
26 tables of 16 columns, a bottom MLP of 13-512-256-64-16, a top one of 512-256-1."""

import torch
from torch import nn

from autosync.models.example_batches import TrainingExample

ROWS = (
    *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593),
    *(3_194, 27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
"""Of the tables: the categories of the data's 26 columns."""
COLUMNS = 16
DENSE_INPUTS = 13
BOTTOM = (DENSE_INPUTS, 512, 256, 64, COLUMNS)
TOP = (512, 256, 1)


class DLRM(nn.Module):
    """A score (batch,) for each row of dense inputs and of categories, one a table."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, COLUMNS, sparse=True) for rows in ROWS)
        self.bottom = mlp(BOTTOM, last_relu=True)
        vectors = len(ROWS) + 1
        self.top = mlp((COLUMNS + vectors * (vectors - 1) // 2, *TOP), last_relu=False)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        looked_up = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        vectors = torch.stack((dense, *looked_up), dim=1)
        products = vectors @ vectors.transpose(1, 2)
        i, j = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1).unbind()
        scores: torch.Tensor = self.top(torch.cat((dense, products[:, i, j]), dim=1))
        return scores.squeeze(1)


def mlp(widths: tuple[int, ...], last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for narrower, wider in zip(widths[1:], widths[:-1], strict=True):
        layers += [nn.Linear(wider, narrower), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def click_loss(
    scores: torch.Tensor,
    numbers: torch.Tensor,
    categories: torch.Tensor,
    clicked: torch.Tensor,
) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(scores, clicked)


def dlrm_kaggle(batch_size: int) -> TrainingExample:
    categories = [torch.randint(0, rows, (batch_size,)) for rows in ROWS]
    inputs = (
        torch.randn(batch_size, DENSE_INPUTS),
        torch.stack(categories, dim=1),
        torch.randint(0, 2, (batch_size,)).float(),
    )
    return DLRM(), inputs, click_loss
