"""A device with a stated budget in host memory, for machines without a GPU."""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from autosync.errors import DeviceMemoryExceeded


@dataclass(slots=True)
class _Counted:
    """A storage that lives, and the bytes it was counted with."""

    storage: weakref.ref[torch.UntypedStorage]
    size_bytes: int


class Arena(TorchDispatchMode):
    """Counts every storage that operations of this thread make while it is entered, until the
    storage is freed; more than the budget is an error, as it would be on a GPU.

    Tensors lie in the host's memory all the same: the arena bounds how many of their bytes there
    are at once. What other threads allocate (gloo's, say) and workspaces of kernels do not count.

    budget_bytes: of the device. bytes_per_second: of its link to the host in each direction;
    infinite where only copying itself shall take time.
    """

    entered: ClassVar[list["Arena"]] = []

    def __init__(self, budget_bytes: int, bytes_per_second: float = float("inf")) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = torch.device("cpu")
        self.budget_bytes = budget_bytes
        self.bytes_per_second = bytes_per_second
        self._bytes = 0
        self._peak = 0
        self._counts = True
        self._counted: dict[int, _Counted] = {}
        self._lock = threading.RLock()  # any thread may free what this one has made

    def __enter__(self) -> "Arena":
        super().__enter__()  # type: ignore[no-untyped-call]
        Arena.entered.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        Arena.entered.remove(self)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._counts:
            self._count(out, func)
        return out

    def allocated_bytes(self) -> int:
        """What is allocated now."""
        return self._bytes

    def take_peak_bytes(self) -> int:
        """The most that was allocated since the last call."""
        peak, self._peak = self._peak, self._bytes
        return peak

    def count(self, tensors: Iterable[Tensor]) -> None:
        """These are on the device from before. Raises DeviceMemoryExceeded where they do not
        fit."""
        self._count(list(tensors), "what was there before")

    @contextmanager
    def host_memory(self) -> Iterator[None]:
        """What is allocated within is the host's."""
        counts, self._counts = self._counts, False
        try:
            yield
        finally:
            self._counts = counts

    def synchronize(self) -> None:
        """Work of the host is done when it returns."""

    def _count(self, values: Any, what: Any) -> None:
        for value in tree_iter(values):
            if not isinstance(value, Tensor) or value.layout != torch.strided:
                continue
            if value.device != self.device:
                continue
            self._count_storage(value.untyped_storage())
        if self._bytes > self.budget_bytes:
            raise DeviceMemoryExceeded(
                f"{what} brings the arena to {self._bytes:,} bytes of {self.budget_bytes:,}.",
                thing="arena",
                value=self._bytes,
                remedy="Give it a larger budget, or swap more.",
            )

    def _count_storage(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            known = self._counted.get(key)
            if known is None or known.storage() is not storage:
                known = _Counted(weakref.ref(storage, self._freed(key)), 0)
                self._counted[key] = known
            self._bytes += size - known.size_bytes  # it may have been resized in place
            known.size_bytes = size
            self._peak = max(self._peak, self._bytes)

    def _freed(self, key: int) -> Callable[[object], None]:
        def forget(reference: object) -> None:
            with self._lock:
                known = self._counted.get(key)
                if known is not None and known.storage is reference:
                    del self._counted[key]
                    self._bytes -= known.size_bytes

        return forget


def host_memory() -> AbstractContextManager[None]:
    """What is allocated within is the host's, where an arena stands for a device."""
    return Arena.entered[-1].host_memory() if Arena.entered else nullcontext()
