"""Shares of the global batch: dealt whole, every sample once, and weighted right."""

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autosync
from autosync.errors import InvalidInput
from autosync.runtime.attachment import attach
from autosync.runtime.share_sampler import sizes
from tests.autosync.runtime.cases import Case, make_model, plan, worst_difference
from tests.autosync.runtime.distributing import bundle_of, refusal
from tests.autosync.runtime.ranks import Ranks

SHARES = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=6).map(
    lambda weights: tuple(weight / sum(weights) for weight in weights)
)


@settings(derandomize=True)
@given(total=st.integers(0, 500), shares=SHARES)
def test_sizes_add_up_and_keep_the_quota(total: int, shares: tuple[float, ...]) -> None:
    dealt = sizes(total, shares)
    assert sum(dealt) == total
    assert all(
        abs(size - total * share) < 1 + 1e-5 for size, share in zip(dealt, shares, strict=True)
    )


@settings(derandomize=True)
@given(
    samples=st.integers(1, 300), batch=st.integers(24, 90), shares=SHARES, epoch=st.integers(0, 3)
)
def test_every_sample_once_and_equally_many_steps(
    samples: int, batch: int, shares: tuple[float, ...], epoch: int
) -> None:
    if min(sizes(batch, shares)) == 0:
        return
    seen: list[int] = []
    steps = set()
    for rank in range(len(shares)):
        sampler = autosync.ShareSampler(range(samples), batch, shares, rank, seed=5)
        sampler.set_epoch(epoch)
        mine = list(sampler)
        assert len(mine) == len(sampler)
        assert sampler.batch_size == autosync.local_batch_size(batch, shares, rank)
        steps.add(-(-len(mine) // sampler.batch_size))
        seen += mine
    assert steps == {-(-samples // batch)}
    assert set(seen) == set(range(samples))
    left = samples % batch
    assert len(seen) - samples == (max(0, len(shares) - left) if left else 0)


def test_sizes_of_a_large_batch_add_up_where_shares_do_within_rounding() -> None:
    for last in (0.5 - 9e-7, 0.5 + 9e-7):
        dealt = sizes(10_000_000, (0.5, last))
        assert sum(dealt) == 10_000_000
        assert abs(dealt[0] - dealt[1]) < 12


def test_the_ranks_batches_are_the_global_batch() -> None:
    shares, samples, batch = (0.5, 0.25, 0.25), 20, 8
    order = list(autosync.ShareSampler(range(samples), batch, (1.0,), 0, seed=3))
    dealt = [
        list(autosync.ShareSampler(range(samples), batch, shares, r, seed=3)) for r in range(3)
    ]
    assert dealt[0][:4] + dealt[1][:2] + dealt[2][:2] == order[:8]
    assert dealt[0][8:] + dealt[1][4:] + dealt[2][4:] == order[16:]


def test_epochs_differ_and_seeds_repeat() -> None:
    sampler = autosync.ShareSampler(range(40), 8, (0.75, 0.25), 0, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    with torch.device("meta"):  # as torch.set_default_device: samples are dealt on the host
        assert list(sampler) == first
    plain = autosync.ShareSampler(range(40), 8, (0.75, 0.25), 1, shuffle=False)
    assert list(plain)[:4] == [6, 7, 14, 15]


def test_drop_last_leaves_the_rest_out() -> None:
    for rank, size in enumerate((6, 2)):
        sampler = autosync.ShareSampler(range(21), 8, (0.75, 0.25), rank, drop_last=True)
        assert len(list(sampler)) == len(sampler) == 2 * size


@pytest.mark.parametrize(
    ("batch", "shares", "rank", "words"),
    [
        (8, (0.5, 0.4), 0, "add up to 1"),
        (8, (0.5, float("nan")), 0, "add up to 1"),
        (8, (0.5, 0.5), 2, "no rank 2"),
        (8, (0.5, 0.5), None, "init_process_group"),
        (4, (0.9, 0.1), 0, "larger global batch"),
        (-8, (0.5, 0.5), 0, "larger global batch"),
    ],
)
def test_batches_that_shares_do_not_divide_are_refused(
    batch: int, shares: tuple[float, ...], rank: int | None, words: str
) -> None:
    ways: tuple[Callable[[], object], ...] = (
        lambda: autosync.ShareSampler(range(20), batch, shares, rank),
        lambda: autosync.local_batch_size(batch, shares, rank),
    )
    for ask in ways:
        with pytest.raises(InvalidInput) as caught:
            ask()
        assert words in f"{caught.value} {caught.value.remedy}"


def of_another_job(rank: int, world: int) -> tuple[list[int], int, list[str], str]:
    """The bundle is for four ranks: `distribute` goes on under torch's DDP."""
    given = bundle_of(Case(shares=(0.4, 0.3, 0.2, 0.1)), make_model("mlp"), 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dealt = sorted(autosync.ShareSampler(range(24), 8, given))
        size = autosync.local_batch_size(8, given)
    said = refusal(lambda: autosync.local_batch_size(8, (0.25,) * 4))
    return dealt, size, [str(each.message) for each in caught], said


def test_a_job_of_other_ranks_is_dealt_evenly(pair: Ranks) -> None:
    found = pair.run(of_another_job)
    assert sorted([*found[0][0], *found[1][0]]) == list(range(24))
    for dealt, size, warned, said in found:
        assert (len(dealt), size) == (12, 4)
        assert len(warned) == 2
        assert all("for 4 ranks and this job has 2" in words for words in warned)
        assert "there are 4 shares, and this job has 2 ranks" in said


def epoch(rank: int, world: int, shares: tuple[float, ...]) -> float:
    """An epoch over a DataLoader equals whole global batches on one process."""
    inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    data = TensorDataset(inputs, inputs[:, :3].cos())
    case = Case(optimizer="plain", shares=shares)
    models = [nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double() for _ in "ab"]
    models[1].load_state_dict(models[0].state_dict())
    model, alone = models
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    names = tuple(name for name, _ in model.named_parameters())
    attachment = attach(model, optimizers[0], plan(case, model, world), names)
    alone.load_state_dict(model.state_dict())  # rank 0's
    sampler = autosync.ShareSampler(data, 8, shares)
    loader = DataLoader(data, batch_size=sampler.batch_size, sampler=sampler)
    for x, y in loader:
        step(model, optimizers[0], x, y)
    attachment.detach()
    whole = autosync.ShareSampler(data, 8, (1.0,), 0)
    for x, y in DataLoader(data, batch_size=8, sampler=whole):
        step(alone, optimizers[1], x, y)
    return worst_difference(model, alone)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def test_weighted_gradients_are_the_global_average(pair: Ranks) -> None:
    for shares in ((0.5, 0.5), (0.75, 0.25), (0.125, 0.875)):
        assert max(pair.run(epoch, shares)) < 1e-12
