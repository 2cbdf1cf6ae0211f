"""Which variables no rank used in an iteration: torch leaves those alone, without a gradient.

A rank that used everything has no cost: the others count in the store who left a variable out.
Each does so before its zeros for it leave, so whoever has the variable's sums has all counts.
"""

from collections.abc import Iterable, Mapping

from torch.distributed.distributed_c10d import Store


class UnusedVariables:
    """store: with keys of one attached plan only. world: number of ranks. apart: of variables that
    some ranks do not hold, and number otherwise: by this rank's number, a name and how many hold
    it."""

    def __init__(
        self, store: Store, world: int, apart: Mapping[int, tuple[str, int]] | None = None
    ):
        self._store = store
        self._world = world
        self._apart = apart or {}
        self._posted: dict[str, int] = {}
        self._mine: set[int] = set()
        self._iteration = -1

    def post(self, iteration: int, variables: Iterable[int]) -> None:
        """This rank has no gradient for these; called in every iteration."""
        self._iteration, self._mine = iteration, set(variables)
        for key in [key for key, then in self._posted.items() if then < iteration - 2]:
            self._store.delete_key(key)  # every rank has read it
            del self._posted[key]
        for variable in self._mine:
            self._store.add(self._key(variable), 1)
            self._posted[self._key(variable)] = iteration

    def by_every_rank(self, variable: int) -> bool:
        """Whether no rank has a gradient for it; called when its sums are here."""
        if variable not in self._mine:
            return False
        holders = self._apart[variable][1] if variable in self._apart else self._world
        return int(self._store.add(self._key(variable), 0)) == holders

    def _key(self, variable: int) -> str:
        name = self._apart[variable][0] if variable in self._apart else variable
        return f"unused/{self._iteration}/{name}"
