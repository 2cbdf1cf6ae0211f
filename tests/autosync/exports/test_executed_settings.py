"""Exported settings run on two ranks: torch's DDP and FSDP2 form the strategy's messages."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.exports import settings_for
from autosync.importing import import_module
from autosync.simulator.sharded_strategy import sharded_by
from autosync.strategy import AllReduce, Encoding, EncodingName, ReduceScatter, Strategy
from autosync.torch_engine import FullyShard, Kept
from tests.autosync.runtime.cases import gap
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.domains import domain_of, grid_cluster
from tests.simulator.worked_examples import strategy_of

WIDTHS = (6, 24, 40, 16, 3)
INPUTS = torch.ones(8, WIDTHS[0])


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    with ranks(2) as made:
        yield made


def network() -> nn.Module:
    torch.manual_seed(3)
    pairs = itertools.pairwise(WIDTHS)
    return nn.Sequential(*(nn.Linear(inputs, outputs) for inputs, outputs in pairs))


def recorded(module: nn.Module, inputs: torch.Tensor) -> Domain:
    """Of two ranks."""
    graph = import_module(
        module, (inputs,), lambda out, *_: out.sum(), name="net", batch_size=len(inputs)
    )
    return domain_of(graph, grid_cluster(2))


def network_domain() -> Domain:
    return recorded(network(), INPUTS)


def grouped(domain: Domain, groups: list[int], kind: Any, **options: Any) -> Strategy:
    return strategy_of(domain, lambda v: kind(groups[v], **options))


def messages(strategy: Strategy) -> list[list[str]]:
    """Names of the variables of each group."""
    found: dict[int, list[str]] = {}
    for choice in strategy.choices:
        found.setdefault(choice.shards[0].group, []).append(choice.variable)
    return sorted(sorted(names) for names in found.values())


def under_ddp(rank: int, world: int, snippet: str) -> list[list[str]]:
    """Names in each bucket of the last of three iterations, and that ranks stay alike."""
    space: dict[str, Any] = {"model": network()}
    exec(snippet, space)  # what a user pastes into a script
    model, seen = space["model"], {}
    names = {parameter: name for name, parameter in model.module.named_parameters()}

    def record(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen[bucket.index()] = sorted(names[each] for each in bucket.parameters())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        mean = work.get_future().then(lambda future: future.value()[0] / world)
        return cast("torch.futures.Future[torch.Tensor]", mean)

    if "register_comm_hook" not in snippet:
        model.register_comm_hook(None, record)
    for _ in range(3):
        seen.clear()
        model.zero_grad()
        model(INPUTS + rank).sum().backward()
    gradient = model.module[0].weight.grad
    everywhere = [torch.empty_like(gradient) for _ in range(world)]
    dist.all_gather(everywhere, gradient)
    assert torch.equal(everywhere[0], everywhere[1])
    return sorted(seen.values())


@pytest.mark.parametrize(
    "groups",
    [[0] * 8, [3, 3, 2, 2, 1, 1, 0, 0], [2, 2, 2, 1, 1, 1, 1, 0], list(range(8))],
    ids=["one", "layers", "unequal", "each"],
)
def test_ddp_fills_buckets_with_the_strategys_groups(pair: Ranks, groups: list[int]) -> None:
    domain = network_domain()
    strategy = grouped(domain, groups, AllReduce)
    found = settings_for("ddp", strategy, domain)
    assert found.deviations == ()
    for seen in pair.run(under_ddp, found.snippet):
        assert seen == messages(strategy)


@pytest.mark.parametrize("encoding", [Encoding("fp16"), Encoding("powersgd", 2)])
def test_ddps_hooks_take_what_is_exported(pair: Ranks, encoding: Encoding) -> None:
    domain = network_domain()
    strategy = grouped(domain, [0] * 8, AllReduce, encoding=encoding)
    pair.run(under_ddp, settings_for("ddp", strategy, domain).snippet)


class Tied(nn.Module):
    """A language model: the head shares the embedding's weight and has a bias of its own where
    told; attention reads the weight of its output projection itself."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 12, bias=bias)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        attended, _ = self.attention(x, x, x, need_weights=False)
        logits: torch.Tensor = self.head(self.norm(x + attended))
        return logits


def tied(bias: bool = False) -> Tied:
    torch.manual_seed(5)
    return Tied(bias)


def tokens_of(rank: int) -> torch.Tensor:
    return (torch.arange(12).reshape(2, 6) * (rank + 1)) % 12


def tied_domain(bias: bool = False) -> Domain:
    return recorded(tied(bias), tokens_of(0))


def inputs_of(rank: int) -> torch.Tensor:
    return INPUTS + rank


def under_fsdp2(
    rank: int,
    world: int,
    snippet: str,
    build: Callable[[], nn.Module] = network,
    inputs: Callable[[int], torch.Tensor] = inputs_of,
) -> tuple[list[list[str]], float]:
    """Names in each message, and how far a step is from one of the whole batch on one process."""
    from torch.distributed.fsdp import FSDPModule

    # attention returns a view of its output, which torch warns of; nothing here writes into it
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    space: dict[str, Any] = {"model": build()}
    exec(snippet, space)
    model = space["shard"](space["model"]) if "shard" in space else space["model"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone = build()
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(2):
        model(inputs(rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.stack([alone(inputs(r)).square().mean() for r in range(world)]).mean().backward()
        single.step()
        single.zero_grad()
    taken: dict[int, set[str]] = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            if group is not None:
                taken[id(group)] = {str(each._param_fqn) for each in group.fsdp_params}
    worst = max(
        gap(mine.full_tensor(), theirs)
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True)
    )
    return sorted(sorted(names) for names in taken.values()), worst


@pytest.mark.parametrize("groups", [[1, 1, 1, 1, 0, 0, 0, 0], [0] * 8, [3, 3, 2, 2, 1, 1, 0, 0]])
def test_fsdp2_forms_the_strategys_messages(pair: Ranks, groups: list[int]) -> None:
    domain = network_domain()
    strategy = grouped(domain, groups, ReduceScatter, sharded_update=True)
    for taken, worst in pair.run(under_fsdp2, settings_for("fsdp2", strategy, domain).snippet):
        assert taken == messages(strategy)
        assert worst < 1e-5


def test_sharding_by_units_is_exported_as_a_function(pair: Ranks) -> None:
    domain = network_domain()
    whole = sorted(variable.name for variable in domain.graph.variables)
    _, *others, last = dict.fromkeys(name.rpartition(".")[0] for name in whole)
    engine = FullyShard((tuple(others), last), 2, (True, False), 2, 3)
    found = settings_for("fsdp2", sharded_by(domain, engine), domain)
    assert found.settings["reshard_after_forward"] == [True, False]
    wanted = [[n for n in whole if engine.unit_of(n) == unit] for unit in range(3)]
    for taken, worst in pair.run(under_fsdp2, found.snippet):
        assert taken == sorted(wanted)
        assert worst < 1e-5


def last_module(domain: Domain) -> str:
    return domain.graph.variables[-1].name.rpartition(".")[0]


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ("gradients", ["set_requires_gradient_sync"]),
        ("values", ["set_requires_gradient_sync", "set_reshard_after_backward"]),
    ],
)
def test_what_is_kept_between_batches_is_exported(kept: Kept, told: list[str]) -> None:
    domain = network_domain()
    engine = FullyShard((last_module(domain),), 2, kept_between_batches=kept)
    found = settings_for("fsdp2", sharded_by(domain, engine), domain)
    assert found.settings["kept_between_batches"] == kept
    script: dict[str, Any] = {}
    exec(found.snippet, script)
    for is_last in (False, True):
        model = Mock()
        script["before_batch"](model, is_last)
        assert model.method_calls == [getattr(call, name)(is_last) for name in told]


@pytest.mark.parametrize(("packed", "reduced"), [("none", "float32"), ("bf16", "bfloat16")])
def test_computing_in_halves_is_exported(pair: Ranks, packed: EncodingName, reduced: str) -> None:
    domain = network_domain()
    engine = FullyShard((last_module(domain),), 2, param_dtype="bf16")
    found = settings_for("fsdp2", sharded_by(domain, engine, Encoding(packed)), domain)
    assert found.settings["param_dtype"] == "bfloat16"
    assert found.settings["reduce_dtype"] == reduced
    for _, worst in pair.run(under_fsdp2, found.snippet):
        assert 1e-6 < worst < 5e-2


def by_module(domain: Domain, *groups: tuple[str, ...]) -> Strategy:
    """Reduce-scatters of the variables whose names begin as those of a group."""
    names = [variable.name for variable in domain.graph.variables]
    numbers = [
        next(i for i, group in enumerate(groups) if name.startswith(group)) for name in names
    ]
    return grouped(domain, numbers, ReduceScatter, sharded_update=True)


@pytest.mark.parametrize(
    "groups",
    [(("embed",), ("attention", "norm")), (("embed", "norm"), ("attention",)), (("",),)],
    ids=["embedding", "with the norm", "one"],
)
def test_fsdp2_takes_tied_weights_with_all_their_modules(
    pair: Ranks, groups: tuple[tuple[str, ...], ...]
) -> None:
    domain = tied_domain()
    strategy = by_module(domain, *groups)
    found = settings_for("fsdp2", strategy, domain)
    assert any({"embed", "head"} <= set(call) for call in found.settings["fully_shard"])
    for taken, worst in pair.run(under_fsdp2, found.snippet, tied, tokens_of):
        assert taken == messages(strategy)
        assert worst < 1e-5


def test_fsdp2_refuses_a_module_whose_parameters_are_apart() -> None:
    domain = tied_domain(bias=True)
    with pytest.raises(NotSupported, match="module 'head' has parameters in two messages"):
        settings_for("fsdp2", by_module(domain, ("embed",), ("",)), domain)
    domain = tied_domain()
    with pytest.raises(NotSupported, match="module 'attention' has parameters in two messages"):
        settings_for("fsdp2", by_module(domain, ("attention.out_proj",), ("",)), domain)
