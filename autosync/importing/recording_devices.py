"""Where a step is recorded: on tensors that have shapes but no memory, or on real ones.

The meta device is twice as fast as fake tensors. These say that they are on the CPU, know the
values of constants, and tell libraries that a graph is being recorded, which then skip their checks
of values. So a step is recorded on the meta device, and again on fake tensors where that fails.
What it does may still depend on values (experts that only some words visit, boxes matched to
targets): that can be recorded with real tensors only.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch


class RecordingDevice(Protocol):
    """name: in words. has_values: its tensors hold numbers."""

    name: str
    has_values: bool

    def active(self) -> Any:
        """Tensors made inside are of this device."""

    def precision(self) -> Any:
        """What the forward pass runs under: autocast, or nothing."""

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """A tensor of this shape, and of another one's dtype."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape, strides and dtype."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is of this device."""

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        """For a tensor that came from elsewhere (a constant that is no buffer of the module)."""


class MetaDevice:
    name = "the meta device"
    has_values = False

    def active(self) -> Any:
        return torch.device("meta")

    def precision(self) -> Any:
        return nullcontext()

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape, dtype=like.dtype, device="meta")

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("meta")

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "meta"

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.holds(tensor) or tensor.dim() == 0 else tensor.to("meta")


class FakeTensors:
    name = "fake tensors"
    has_values = False

    def __init__(self, autocast: torch.dtype | None = None) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode  # a second to load

        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._autocast = autocast

    @contextmanager
    def active(self) -> Iterator[None]:
        log = logging.getLogger("torch._subclasses.fake_tensor")
        silenced, log.disabled = log.disabled, True  # it logs a traceback beside the error
        try:
            with torch.device("cpu"), self._mode:
                yield
        finally:
            log.disabled = silenced

    def precision(self) -> Any:
        return _autocast(self._autocast)

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        with self._mode:
            return torch.empty(shape, dtype=like.dtype, device="cpu")

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return self._mode.from_tensor(tensor.detach())
        with self._mode:
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )

    def holds(self, tensor: torch.Tensor) -> bool:
        return getattr(tensor, "fake_mode", None) is self._mode

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.copy(tensor) if tensor.device.type == "meta" else tensor


class RealTensors:
    name = "the CPU"
    has_values = True

    def __init__(self, autocast: torch.dtype | None = None) -> None:
        self._autocast = autocast

    def active(self) -> Any:
        return torch.device("cpu")

    def precision(self) -> Any:
        return _autocast(self._autocast)

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape, dtype=like.dtype)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("cpu", copy=True)

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def _autocast(dtype: torch.dtype | None) -> Any:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype)
