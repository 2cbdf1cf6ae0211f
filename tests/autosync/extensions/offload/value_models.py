"""Models that use their parameters in every way that swapped values have to see."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.autosync.extensions.offload.swapped_training import WIDTH, block


class ReadsAnothersWeight(nn.Module):
    """A weight is used by its module, and read by a function outside of it (a tied head)."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.middle = nn.Linear(WIDTH, 128), nn.Linear(128, 128)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.tanh(self.middle(torch.tanh(self.into(x)))) @ self.into.weight
        return out


class TiedModules(nn.Module):
    """Two modules share a parameter, which is used in between by another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return out


class Attends(nn.Module):
    """torch's own attention reads the weight of a module that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(-1, 8, WIDTH)
        mixed, _ = self.attention(rows, rows, rows, need_weights=False)
        out: Tensor = self.last(mixed).reshape(x.shape)
        return out


class Recurs(nn.Module):
    """torch's LSTM reads a list of its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.layers(x.view(-1, 8, WIDTH))
        out: Tensor = self.last(hidden).reshape(x.shape)
        return out


class ListsParameters(nn.Module):
    """The list has no forward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        weights = [nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH) for _ in range(4)]
        self.weights = nn.ParameterList(weights)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x


class Table(nn.Module):
    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, WIDTH))
        self.whole = whole

    def forward(self) -> Tensor:
        return self.weight if self.whole else self.weight[:8]


class ReturnsItsWeight(nn.Module):
    """Modules return a parameter, or a view of one, which is read when they have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.all = Table(whole=False), Table(whole=True)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        part, everything = self.part(), self.all()
        hidden = torch.tanh(self.first(x)).view(-1, 8, WIDTH) * part
        out: Tensor = self.last(torch.tanh(hidden.view(-1, 16, WIDTH) * everything))
        return out.reshape(x.shape)


class RunsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.first(torch.tanh(self.other(torch.tanh(self.first(x)))))
        return out


class Convolution(nn.Module):
    """Keeps its weight itself for backward, and no view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x[..., None])[..., 0]
        return out


class RunsAgainInBackward(nn.Module):
    """What its second forward pass saves is not packed by anybody who swaps."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = block(), block()
        self.middle = nn.Sequential(block(), Convolution(), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        again = checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant)
        out: Tensor = self.last(again)
        return out


class IsParametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(WIDTH, 64))
        self.last = nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(x)))
        return out


class Decays(nn.Linear):
    """Writes its weight within the forward pass, where torch does not count it."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.mul_(0.99)
        return functional.linear(x, self.weight, self.bias)


class WritesItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (Decays(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return out


class HasAFrozenPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = block(), block()
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.trained(self.frozen(x))
        return out


class Factors(nn.Module):
    """Two tables whose rows are multiplied: backward needs rows and their numbers, which are small,
    and no value."""

    def __init__(self) -> None:
        super().__init__()
        self.of_rows, self.of_columns = (nn.Embedding(1000, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        places = x[:8, :2].abs().mul(100).long() % 1000
        out: Tensor = self.of_rows(places[:, 0]) * self.of_columns(places[:, 1])
        return out


def with_shared_memory() -> nn.Module:
    """Two parameters are views of one flat tensor; the third has its own."""
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)]
    flat = torch.randn(2, WIDTH, WIDTH) / WIDTH
    for layer, part in zip(layers[:2], flat, strict=True):
        layer.weight = nn.Parameter(part)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


MODELS_OF_VALUES = {
    "reads another's weight": ReadsAnothersWeight,
    "tied modules": TiedModules,
    "torch's attention": Attends,
    "recurrent": Recurs,
    "list of parameters": ListsParameters,
    "returns its weight": ReturnsItsWeight,
    "runs twice": RunsTwice,
    "checkpoint": lambda: RunsAgainInBackward(reentrant=False),
    "reentrant checkpoint": lambda: RunsAgainInBackward(reentrant=True),
    "parametrized": IsParametrized,
    "writes its weight": WritesItsWeight,
    "frozen part": HasAFrozenPart,
    "shared memory": with_shared_memory,
    "factors": Factors,
}
