import pytest
import torch

from autosync.extensions.staleness.stamped_messages import STAMP_BYTES, StampedBuffer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_values_and_stamp_share_no_byte(size: int, dtype: torch.dtype) -> None:
    buffer = StampedBuffer(size, dtype)
    buffer.values.fill_(1.5)
    buffer.stamp = -(2**62)
    assert buffer.values.tolist() == [1.5] * size
    assert buffer.stamp == -(2**62)
    buffer.values.zero_()
    assert buffer.stamp == -(2**62)
    assert len(buffer.raw) < size * dtype.itemsize + 2 * STAMP_BYTES
