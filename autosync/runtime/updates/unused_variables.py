"""Which variables no rank used in an iteration: torch does not update those, as they have no
gradient.

Each rank that left a variable out writes one bitmap into the store at the end of its backward pass,
before it sends zeros. So when the sums of a variable that no rank used are complete, the bitmaps of
all ranks are in the store. A rank that has never left a variable out writes and reads nothing. From
its first bitmap on a rank writes one in every iteration, so that one read gives all of them.
"""

from collections.abc import Callable, Iterable, Sequence

from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.runtime.transport.base import SynchronizationFailed

SLOTS = 64
"""Bitmaps of a rank that the store holds. On gloo ranks are at most two iterations apart. On NCCL
the host of one that leaves nothing out runs ahead, as far as its GPU's queue of launches allows."""


class UnusedVariables:
    """A collective: every rank makes its own before any of them reads.

    store: with keys of one attached plan only. world: number of ranks. numbers: of this rank's
    variables, the same on every rank. holders: the ranks that hold each of them.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        numbers: Sequence[int],
        holders: Sequence[tuple[int, ...]],
    ):
        self._store = PrefixStore("unused", store)
        self._rank = rank
        self._world = world
        self._numbers = numbers
        self._holders = holders
        self._writes = False
        self._mine: frozenset[int] = frozenset()
        self._iteration = -1
        self._bitmaps: list[int | None] = []
        slots = [f"{slot}/{rank}" for slot in range(SLOTS)]
        self._store.multi_set(slots, ["-1 0"] * SLOTS)  # type: ignore[attr-defined]  # has no type

    def post(self, iteration: int, variables: Iterable[int]) -> None:
        """This rank has no gradient for these; called in every iteration."""
        self._iteration, self._mine = iteration, frozenset(variables)
        self._bitmaps = [None] * self._world
        self._writes = self._writes or bool(self._mine)
        if self._writes:
            bitmap = 0
            for variable in self._mine:
                bitmap |= 1 << self._numbers[variable]
            self._store.set(f"{iteration % SLOTS}/{self._rank}", f"{iteration} {bitmap:x}")

    def by_every_rank(
        self, variables: Iterable[int], arrived: Callable[[], None] = lambda: None
    ) -> frozenset[int]:
        """Those of the variables that no rank has a gradient for; called when the host has
        completed their sums. The store is read once, or not at all where the bitmaps that were read
        before suffice. Raises SynchronizationFailed where a rank is SLOTS iterations ahead.

        arrived: returns when the sums are here. On NCCL the host completes a message when it has
        asked for it: other ranks may not have come so far, and not have said what they left out.
        """
        mine, bitmaps = self._mine.intersection(variables), self._bitmaps
        known = {variable: self._known(variable, bitmaps) for variable in mine}
        if None in known.values():
            arrived()
            bitmaps = self._bitmaps = self._read()
            known = {variable: self._known(variable, bitmaps) for variable in mine}
        # A rank without a bitmap has used a variable, or its zeros would not be here.
        return frozenset(variable for variable, unused in known.items() if unused)

    def _known(self, variable: int, bitmaps: Sequence[int | None]) -> bool | None:
        """None where it depends on bitmaps that were not there when they were read last."""
        said = [bitmaps[rank] for rank in self._holders[variable]]
        bit = 1 << self._numbers[variable]
        if not all(bitmap & bit for bitmap in said if bitmap is not None):
            return False
        return None if None in said else True

    def _read(self) -> list[int | None]:
        slot = self._iteration % SLOTS
        posts = self._store.multi_get([f"{slot}/{rank}" for rank in range(self._world)])
        return [self._bitmap(rank, post) for rank, post in enumerate(posts)]

    def _bitmap(self, rank: int, post: bytes) -> int | None:
        """None of an iteration before. Raises SynchronizationFailed of one after."""
        number, bitmap = post.decode().split()
        if int(number) > self._iteration:
            raise SynchronizationFailed(
                f"rank {rank} is {int(number) - self._iteration} iterations ahead of this one: "
                "which parameters it left out here is no longer known.",
                thing="backward",
                remedy="Read the loss every few iterations (`loss.item()`): the hosts of all ranks "
                "then stay together.",
            )
        return int(bitmap, 16) if int(number) == self._iteration else None
