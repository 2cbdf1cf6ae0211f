"""What a test needs of the machine's GPUs."""

from collections.abc import Callable

import pytest
import torch

from tests.autosync.runtime.place import ON_GPUS

GPUS = torch.cuda.device_count() if ON_GPUS else 0

Test = Callable[..., None]


def on_gpus(test: Test) -> Test:
    """Runs on one GPU, which its ranks share, or on several; and, where COMPUTE_DEVICE is cpu,
    without any."""
    marked: Test = pytest.mark.skipif(
        ON_GPUS and GPUS < 1, reason="NOT VERIFIED: this machine has no NVIDIA GPU"
    )(pytest.mark.cuda(test))
    return marked


def on_real_gpus(test: Test) -> Test:
    """What is asked of the device itself: its streams and events."""
    marked: Test = pytest.mark.skipif(
        GPUS < 1, reason="NOT VERIFIED: this asks something of an NVIDIA GPU itself"
    )(pytest.mark.cuda(test))
    return marked


def between_gpus(test: Test) -> Test:
    """What ranks that share a GPU cannot show: messages over NVLink, PCIe or peer-to-peer."""
    marked: Test = pytest.mark.skipif(
        GPUS < 2, reason=f"NOT VERIFIED: NCCL between GPUs needs two, this machine has {GPUS}"
    )(pytest.mark.cuda(test))
    return marked
