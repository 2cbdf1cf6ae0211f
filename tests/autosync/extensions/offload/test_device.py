"""Where buffers of the host are, whatever device the script makes its tensors on."""

import torch

from autosync.extensions.offload.device import ThreadTransfers


def test_a_default_device_of_the_script_does_not_make_host_buffers() -> None:
    with torch.device("meta"):
        assert torch.empty(8).device.type == "meta"
        assert ThreadTransfers(float("inf")).host_buffer(8).device.type == "cpu"
