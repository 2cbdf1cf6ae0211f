"""Deals every rank its share of the global batch.

torch's DistributedSampler deals evenly; a strategy may give a faster device a larger share, and
the runtime weights the rank's gradient by it. The two must agree, so both come from the bundle.
"""

import warnings
from collections.abc import Iterator, Sequence, Sized
from math import fsum
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from autosync.bundle import Bundle, load_bundle
from autosync.errors import InvalidInput
from autosync.verification.shard_checks import SHARE_TOLERANCE

Shares = Bundle | str | Path | Sequence[float]
"""A bundle, its file, or the shares themselves, by rank."""


def local_batch_size(global_batch: int, shares: Shares, rank: int | None = None) -> int:
    """The number of samples of a global batch for `rank`: the batch_size of its DataLoader.

    rank: by default this process's own. Largest remainders, so sizes add up to the global batch.

    Raises:
        InvalidInput: a rank would have no sample, or the shares do not add up to 1.
    """
    given, own = _shares_and_rank(shares, rank)
    return _full_sizes(global_batch, given)[own]


def sizes(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers that add up to `total`, in proportion to the shares by largest remainder
    (the lower rank first where remainders are equal)."""
    whole = fsum(shares)  # 1, but for rounding
    exact = [total * share / whole for share in shares]
    found = [int(value + SHARE_TOLERANCE) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda rank: found[rank] - exact[rank])
    for rank in by_remainder[: total - sum(found)]:
        found[rank] += 1
    return found


def _full_sizes(global_batch: int, shares: Sequence[float]) -> list[int]:
    """Of every rank. Raises InvalidInput where one has no sample."""
    found = sizes(global_batch, shares)
    if min(found) < 1:
        raise InvalidInput(
            f"a global batch of {global_batch} leaves a rank without a sample: the least share is "
            f"{min(shares):.4g}.",
            thing="global_batch",
            value=global_batch,
            remedy="Use a larger global batch.",
        )
    return found


def _last_sizes(left: int, shares: Sequence[float], full: list[int]) -> list[int]:
    """Nearly in proportion, but at least one each, and no more than in a full batch (which
    largest remainders would not promise)."""
    dealt = [1] * len(shares)
    for _ in range(left - len(shares)):
        open_ranks = (rank for rank in range(len(shares)) if dealt[rank] < full[rank])
        dealt[max(open_ranks, key=lambda rank: left * shares[rank] - dealt[rank])] += 1
    return dealt


def shares_of(shares: Shares) -> tuple[float, ...]:
    """Raises InvalidInput unless they are positive and add up to 1."""
    if isinstance(shares, str | Path):
        shares = load_bundle(shares)
    given = shares.plan.shares if isinstance(shares, Bundle) else tuple(shares)
    if not (given and min(given) > 0 and abs(fsum(given) - 1) <= SHARE_TOLERANCE):  # NaN is neither
        raise InvalidInput(
            f"the shares of the ranks are {given[:16]}: they must be positive and add up to 1.",
            thing="shares",
            value=given[:16],
            remedy="Give the bundle, or one share per rank.",
        )
    return given


class ShareSampler(Sampler[int]):
    """For a DataLoader whose batch_size is `sampler.batch_size`: every sample once an epoch.

    The ranks' batches number i are together one global batch. The last one of an epoch is smaller,
    and gives every rank at least one sample, so that all ranks take equally many steps: where
    fewer are left than there are ranks, the first of the epoch are dealt again, as torch's
    DistributedSampler does, or, with `drop_last`, a last batch that is not full is left out. Leave
    the DataLoader's own drop_last off: it would leave out those of some ranks alone, since a last
    batch may be full on one rank and not on another.

    The runtime weights each rank's mean gradient by its share, so every sample of a full batch
    weighs the same where `share * global_batch` is a whole number.
    """

    def __init__(
        self,
        dataset: Sized,
        global_batch: int,
        shares: Shares,
        rank: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        self.shares, self.rank = _shares_and_rank(shares, rank)
        self.global_batch = global_batch
        self.samples = len(dataset)
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        _full_sizes(global_batch, self.shares)

    @property
    def batch_size(self) -> int:
        return sizes(self.global_batch, self.shares)[self.rank]

    def set_epoch(self, epoch: int) -> None:
        """Call before every epoch, so that each epoch has a different order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self._ranges())

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order: list[int] = torch.randperm(
                self.samples, generator=generator, device="cpu"
            ).tolist()
        else:
            order = list(range(self.samples))
        for start, stop in self._ranges():
            yield from (order[place % self.samples] for place in range(start, stop))

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """This rank's part of every global batch, as places in the epoch's order; those behind
        its end are the first again."""
        full = sizes(self.global_batch, self.shares)
        before = sum(full[: self.rank])
        batches, left = divmod(self.samples, self.global_batch)
        for start in range(0, batches * self.global_batch, self.global_batch):
            yield start + before, start + before + full[self.rank]
        if left and not self.drop_last:
            last = _last_sizes(left, self.shares, full)
            first = batches * self.global_batch + sum(last[: self.rank])
            yield first, first + last[self.rank]


def _shares_and_rank(shares: Shares, rank: int | None) -> tuple[tuple[float, ...], int]:
    """By default the rank is this process's own. Where the job has other ranks than the bundle,
    every rank has an even share: `distribute` runs torch's DDP there, which averages evenly.

    Raises:
        InvalidInput: the shares do not add up to 1, or are not one for each rank of the job; there
            is no such rank.
    """
    given = shares_of(shares)
    if rank is None and dist.is_initialized():
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if len(given) != ranks:
            given = _even_shares(shares, len(given), ranks)
    if rank is None or not 0 <= rank < len(given):
        raise InvalidInput(
            f"there is no rank {-1 if rank is None else rank} among {len(given)} shares.",
            thing="rank",
            value=rank,
            remedy="Give `rank`, or call torch.distributed.init_process_group before.",
        )
    return given, rank


def _even_shares(shares: Shares, number: int, ranks: int) -> tuple[float, ...]:
    if not isinstance(shares, Bundle | str | Path):
        raise InvalidInput(
            f"there are {number} shares, and this job has {ranks} ranks: some samples would belong "
            "to no rank, or some ranks would have none.",
            thing="shares",
            value=number,
            remedy="Give one share for each rank. Within a process group that is not all ranks, "
            "give this rank's number there, too.",
        )
    warnings.warn(
        f"the bundle is for {number} ranks and this job has {ranks}, so every rank is dealt the "
        "same share. Within a process group that is not all ranks, give this rank's number there.",
        stacklevel=4,
    )
    return (1 / ranks,) * ranks
