"""Neural collaborative filtering (He et al. 2017) as MLPerf enlarges it: MovieLens-20M with 16
times the users and 32 times the movies; 8 factors and an MLP of 64-32-16-8."""

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample

USERS = 138_493 * 16
ITEMS = 26_744 * 32
FACTORS = 8
WIDTHS = (64, 32, 16, 8)


class NCF(nn.Module):
    """A score (batch,) for each pair of user and item."""

    def __init__(self, sparse: bool):
        super().__init__()
        half = WIDTHS[0] // 2
        self.user_factors = nn.Embedding(USERS, FACTORS, sparse=sparse)
        self.item_factors = nn.Embedding(ITEMS, FACTORS, sparse=sparse)
        self.user_mlp = nn.Embedding(USERS, half, sparse=sparse)
        self.item_mlp = nn.Embedding(ITEMS, half, sparse=sparse)
        layers: list[nn.Module] = []
        for narrower, wider in zip(WIDTHS[1:], WIDTHS[:-1], strict=True):
            layers += [nn.Linear(wider, narrower), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.score = nn.Linear(FACTORS + WIDTHS[-1], 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        product = self.user_factors(users) * self.item_factors(items)
        mixed = self.mlp(torch.cat((self.user_mlp(users), self.item_mlp(items)), dim=1))
        scores: torch.Tensor = self.score(torch.cat((product, mixed), dim=1))
        return scores.squeeze(1)


def rating_loss(
    scores: torch.Tensor, users: torch.Tensor, items: torch.Tensor, liked: torch.Tensor
) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(scores, liked)


def ncf_movielens(batch_size: int, sparse: bool) -> TrainingExample:
    inputs = (
        torch.randint(0, USERS, (batch_size,)),
        torch.randint(0, ITEMS, (batch_size,)),
        torch.randint(0, 2, (batch_size,)).float(),
    )
    return NCF(sparse), inputs, rating_loss


def ncf_dense(batch_size: int) -> TrainingExample:
    return ncf_movielens(batch_size, sparse=False)


def ncf_sparse(batch_size: int) -> TrainingExample:
    return ncf_movielens(batch_size, sparse=True)
