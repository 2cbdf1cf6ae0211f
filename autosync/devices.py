"""Published peaks of device types, for rooflines and memory limits.

Peaks are the makers' data sheets, float32 without sparsity (tensor cores as TF32 where the device
has it). A profile estimated from them is marked as an estimate.
"""

from dataclasses import dataclass

from autosync.errors import InvalidInput, NotSupported


@dataclass(frozen=True, slots=True)
class DeviceType:
    """tf32: convolutions and, where allowed, matrix products run on tensor cores as TF32."""

    peak_flops_per_second: float
    memory_bytes_per_second: float
    memory_gb: float
    is_gpu: bool = True
    tf32: bool = False


DEVICE_TYPES: dict[str, DeviceType] = {
    "cpu": DeviceType(1.0e11, 2.0e10, 8.0, is_gpu=False),
    "k80": DeviceType(4.1e12, 2.4e11, 12.0),
    "m60": DeviceType(4.8e12, 1.6e11, 8.0),
    "titan-x": DeviceType(6.7e12, 3.4e11, 12.0),
    "gtx-1080-ti": DeviceType(1.13e13, 4.84e11, 11.0),
    "p100": DeviceType(9.5e12, 7.32e11, 16.0),
    "t4": DeviceType(8.1e12, 3.2e11, 16.0),
    "rtx-2080-ti": DeviceType(1.345e13, 6.16e11, 11.0),
    "v100": DeviceType(1.57e13, 9.0e11, 32.0),
    "rtx-3090": DeviceType(3.56e13, 9.36e11, 24.0, tf32=True),
    "a10g": DeviceType(3.5e13, 6.0e11, 24.0, tf32=True),
    "l4": DeviceType(3.03e13, 3.0e11, 24.0, tf32=True),
    "a100": DeviceType(1.56e14, 1.555e12, 40.0, tf32=True),
    "h100": DeviceType(4.94e14, 3.35e12, 80.0, tf32=True),
    "h200": DeviceType(4.94e14, 4.8e12, 141.0, tf32=True),
}


def device_type_of_gpu(name: str, stated: str | None = None) -> str:
    """The device type of a GPU that calls itself `name` ("NVIDIA GeForce RTX 2080 Ti").

    stated: what the user says it is; then the name does not count.

    Raises:
        InvalidInput: `stated` is the type of no GPU.
        NotSupported: the name holds no known type, and none is stated.
    """
    gpus = [kind for kind, device in DEVICE_TYPES.items() if device.is_gpu]
    if stated is not None:
        if stated not in gpus:
            raise InvalidInput(
                f"device_type {stated!r} is the type of no GPU.",
                thing="device_type",
                value=stated,
                remedy=f"Known: {', '.join(gpus)}.",
            )
        return stated
    words = f" {name.lower().replace('-', ' ')} "  # whole words: an L40S is no L4
    found = [kind for kind in gpus if f" {kind.replace('-', ' ')} " in words]
    if not found:
        raise NotSupported(
            f"GPU {name!r} is of no known device type.",
            thing="device_type",
            value=name,
            remedy="State the known type that computes most like it, as device_type; it counts "
            f"where a cluster mixes types, and names the profile. Known: {', '.join(gpus)}.",
        )
    return max(found, key=len)
