"""Documents name types of tensors as torch does; torch's own objects for these names."""

from typing import get_args

import torch

from autosync.graph import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {name: getattr(torch, name) for name in get_args(DType)}

DTYPE_NAMES: dict[torch.dtype, DType] = {dtype: name for name, dtype in TORCH_DTYPES.items()}
"""The reverse; a type that is not in it is not supported."""
