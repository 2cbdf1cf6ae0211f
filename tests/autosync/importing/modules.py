"""Small modules that the importer's tests record."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

BATCH = 4


def features() -> torch.Tensor:
    return torch.randn(BATCH, 8)


def labels() -> torch.Tensor:
    return torch.randint(0, 3, (BATCH,))


def cross_entropy(outputs: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, inputs[-1])


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


class Tied(nn.Module):
    """The embedding is used first and, as the output layer, last."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, sparse=sparse)
        self.middle = nn.Linear(8, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states = torch.relu(self.middle(self.embedding(words)))
        return nn.functional.linear(states, self.embedding.weight)


def tied_loss(outputs: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), words.flatten())


class Sparse(nn.Module):
    """Two sparse tables; the small one is looked up twice."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 8, sparse=True)
        self.small = nn.Embedding(10, 8, sparse=True)
        self.large = nn.Embedding(10_000, 8, sparse=True)
        self.output = nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        first, second = self.small(rows), self.small(rows[:, :2])
        summed = first.sum(1) + second.sum(1) + self.large(rows).sum(1)
        scores: torch.Tensor = self.output(self.bag(rows) + summed)
        return scores


class Layer(nn.Module):
    """`forward` is replaced by the tests' functions of (layer output)."""

    def __init__(self, after: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.after = after

    def forward(self, x: torch.Tensor) -> Any:
        return self.after(self.layer(x))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda y: torch.relu(self.first(y)), x, use_reentrant=False)
        scores: torch.Tensor = self.second(hidden)
        return scores


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = Product.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return product + self.bias


class Slices(nn.Module):
    """Writes two halves of its output in place."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(8, 3)
        self.right = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(x.shape[0], 6)
        out[:, :3] = self.left(x)
        out[:, 3:] = self.right(x)
        return out


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.output = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x[:, None, :].expand(-1, 5, -1)
        scores: torch.Tensor = self.output(self.attention(tokens, tokens, tokens)[0].mean(1))
        return scores


class Missing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no fused kernel")


class Falling(nn.Module):
    """Falls back to another module where the first one raises."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = Missing()
        self.plain = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            scores: torch.Tensor = self.fused(x)
        except NotImplementedError:
            scores = self.plain(x)
        return scores


class AroundFalling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Falling()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x))


class FixedBatch(nn.Module):
    """Runs at one batch size only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.ones(3, device=x.device) * 2
        scores: torch.Tensor = self.layer(x.view(BATCH, 8)) * scale
        return scores
