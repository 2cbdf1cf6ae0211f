"""Models whose forward pass depends on its input, under synchronizers of dense gradients: ranks
leave out other variables and have their gradients in another order, each iteration."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autosync.runtime.attachment import Attachment
from autosync.strategy import AllGather, AllReduce, Factors, Schedule, Synchronizer
from tests.autosync.runtime import cases, rows
from tests.autosync.runtime.cases import Case
from tests.autosync.runtime.place import beside, here
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP

WIDTH, EXPERTS, EXITS, WORDS = 6, 4, 3, 19
ITERATIONS = 4
METHODS = ("all_reduce", "ring", "tree", "ps", "byteps", "rs", "zero", "mixed")
"""Of one stage: on ranks of a node each those of two are the same."""


class EarlyExit(nn.Module):
    """A batch leaves at the first exit that is sure of it; later blocks and exits do not run."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXITS))
        self.exits = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(EXITS))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).mean(1)
        leaves_at = int(tokens.sum()) % EXITS
        for depth, (block, leave) in enumerate(zip(self.blocks, self.exits, strict=True)):
            x = torch.tanh(block(x))
            found: Tensor = leave(x)
            if depth == leaves_at:
                break
        return found


class MixtureOfExperts(nn.Module):
    """Each sample goes to one expert. Experts run in the order of their load, and some not at
    all; the last is never chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(EXPERTS))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).mean(1)
        weights = self.gate(x).softmax(dim=1)
        chosen = tokens[:, 0] % (EXPERTS - 1)
        outputs: Tensor = x.new_zeros(len(x), 3)
        for expert in torch.bincount(chosen, minlength=EXPERTS).argsort().tolist():
            mine = (chosen == expert).nonzero().flatten()
            if len(mine):
                values = self.experts[expert](x[mine]) * weights[mine, expert, None]
                outputs = outputs.index_add(0, mine, values)
        return outputs


MODELS: dict[str, Callable[[], nn.Module]] = {"exit": EarlyExit, "experts": MixtureOfExperts}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(2)
    return here(MODELS[name]())


def dense_model_of(name: str) -> nn.Module:
    model = model_of(name)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = False
    return model


def loss(model: nn.Module, iteration: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * iteration + rank)
    tokens = torch.randint(0, WORDS - EXITS, (3, 2), generator=generator)
    outputs: Tensor = model(beside(model, tokens))
    return outputs.square().sum() + outputs.sum()


def compared(
    rank: int, model: nn.Module, put: Callable[[torch.optim.Optimizer], Attachment]
) -> tuple[float, list[float]]:
    """The largest difference from training alone, and the weights."""
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = put(optimizer)
    rows.train(model, optimizer, loss, ITERATIONS, rank)
    attachment.detach()
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    rows.train_alone(alone, single, loss, ITERATIONS, (0.5, 0.5))
    return cases.worst_difference(model, alone), cases.weights(model).tolist()


def by_method(rank: int, world: int, name: str) -> list[tuple[float, list[float]]]:
    """Whole in the order of the plan, or cut with priorities into the next forward pass: each
    method so for one of the models, and so for the other."""
    found, forms = [], (("whole", Schedule()), ("even", OVERLAP))
    for number, method in enumerate(METHODS, list(MODELS).index(name)):
        partition, schedule = forms[number % 2]
        case = Case(method=method, partition=partition, schedule=schedule, groups=3)
        model = dense_model_of(name)

        def put(optimizer: torch.optim.Optimizer) -> Attachment:
            return cases.attached(case, world, model=model, optimizer=optimizer)[2]  # noqa: B023

        found.append(compared(rank, model, put))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_dense_gradients_by_each_method(pair: Ranks, name: str) -> None:
    for method, first, second in zip(METHODS, *pair.run(by_method, name), strict=True):
        assert max(first[0], second[0]) < 2e-6, method
        assert first[1] == second[1], method


def rows_and_factors(
    shard: int, variable: str, sparse: bool, world: int
) -> tuple[int, Synchronizer]:
    """Tables by their touched rows, matrices by their factors, and the rest densely."""
    if sparse:
        return 1, AllGather(0)
    return 1, Factors(1) if variable.endswith("weight") else AllReduce(2)


def by_rows_and_factors(rank: int, world: int, name: str) -> list[tuple[float, list[float]]]:
    found = []
    for schedule in (Schedule(), OVERLAP):
        model = model_of(name)

        def put(optimizer: torch.optim.Optimizer) -> Attachment:
            made = rows.plan(model, world, rows_and_factors, schedule)  # noqa: B023
            return rows.attached(model, optimizer, made)  # noqa: B023

        found.append(compared(rank, model, put))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_touched_rows_beside_factors(pair: Ranks, name: str) -> None:
    for first, second in zip(*pair.run(by_rows_and_factors, name), strict=True):
        assert max(first[0], second[0]) < 2e-6
        assert first[1] == second[1]
