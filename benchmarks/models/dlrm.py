"""DLRM (Naumov et al. 2019, arXiv 1906.00091) as its authors set it up for Criteo's two data sets.

Kaggle: 26 tables of 16 columns, a bottom MLP of 13-512-256-64-16, a top one of 512-256-1. Terabyte:
tables of 64 columns and at most ten million rows, 13-512-256-64 and 512-512-256-1.
"""

from dataclasses import dataclass

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample

DENSE_INPUTS = 13


@dataclass(frozen=True, slots=True)
class DLRMSizes:
    """rows: of the tables, the categories of the data's 26 columns. bottom, top: widths of the
    MLPs' layers after the first."""

    rows: tuple[int, ...]
    columns: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


KAGGLE = DLRMSizes(
    rows=(
        *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593),
        *(3_194, 27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105),
        142_572,
    ),
    columns=16,
    bottom=(512, 256, 64),
    top=(512, 256),
)
TERABYTE = DLRMSizes(
    rows=(
        *(9_980_333, 36_084, 17_217, 7_378, 20_134, 3, 7_112, 1_442, 61, 9_758_201, 1_333_352),
        *(313_829, 10, 2_208, 11_156, 122, 4, 970, 14, 9_994_222, 7_267_859, 9_946_608, 415_421),
        *(12_420, 101, 36),
    ),
    columns=64,
    bottom=(512, 256),
    top=(512, 512, 256),
)


class DLRM(nn.Module):
    """A score (batch,) for each row of dense inputs and of categories, one a table."""

    def __init__(self, sizes: DLRMSizes) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(rows, sizes.columns, sparse=True) for rows in sizes.rows
        )
        self.bottom = mlp((DENSE_INPUTS, *sizes.bottom, sizes.columns), last_relu=True)
        vectors = len(sizes.rows) + 1
        pairs = vectors * (vectors - 1) // 2
        self.top = mlp((sizes.columns + pairs, *sizes.top, 1), last_relu=False)

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
    scores: torch.Tensor, numbers: torch.Tensor, categories: torch.Tensor, clicked: torch.Tensor
) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(scores, clicked)


def dlrm_example(sizes: DLRMSizes, batch_size: int) -> TrainingExample:
    categories = [torch.randint(0, rows, (batch_size,)) for rows in sizes.rows]
    inputs = (
        torch.randn(batch_size, DENSE_INPUTS),
        torch.stack(categories, dim=1),
        torch.randint(0, 2, (batch_size,)).float(),
    )
    return DLRM(sizes), inputs, click_loss


def dlrm(batch_size: int) -> TrainingExample:
    return dlrm_example(KAGGLE, batch_size)


def dlrm_terabyte(batch_size: int) -> TrainingExample:
    return dlrm_example(TERABYTE, batch_size)
