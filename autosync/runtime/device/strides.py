"""In which order the elements of a tensor lie in memory."""

import math

from torch import Tensor, nn

from autosync.errors import NotSupported

Shape = tuple[int, ...]


def memory_order(strides: Shape) -> tuple[int, ...]:
    """The dimensions, the one of the longest stride first."""
    return tuple(sorted(range(len(strides)), key=lambda dimension: -strides[dimension]))


def dense_strides(tensor: Tensor) -> Shape | None:
    """The strides of a tensor that fills its part of a storage with other strides than row-major
    order has, as channels_last does; None of any other."""
    dimensions = [d for d in memory_order(tensor.stride()) if tensor.shape[d] != 1]
    expected = 1
    for dimension in reversed(dimensions):
        if tensor.stride(dimension) != expected:
            return None
        expected *= tensor.shape[dimension]
    row_major = tuple(math.prod(tensor.shape[d + 1 :]) for d in range(tensor.dim()))
    return None if tensor.stride() == row_major or not expected else tensor.stride()


def shares_places(tensor: Tensor) -> bool:
    """Whether two elements of a tensor may lie in one place of its storage, as after `expand`."""
    reach = 0 if tensor.numel() else -1
    for dimension in reversed(memory_order(tensor.stride())):
        if tensor.shape[dimension] > 1:
            if tensor.stride(dimension) <= reach:
                return True
            reach += (tensor.shape[dimension] - 1) * tensor.stride(dimension)
    return False


def check_own_places(model: nn.Module) -> None:
    """Raises NotSupported where two elements of a parameter lie in one place of its storage: no
    optimizer can update them."""
    for name, parameter in model.named_parameters():
        if shares_places(parameter):
            strides = tuple(parameter.stride())
            raise NotSupported(
                f"elements of variable {name!r} share places of its storage: it has shape "
                f"{tuple(parameter.shape)} and strides {strides}.",
                thing=f"variable {name}",
                value=strides,
                remedy="Give the module nn.Parameter(parameter.detach().clone(memory_format="
                "torch.contiguous_format)) in its place, before the optimizer is made.",
            )
