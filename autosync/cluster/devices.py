"""Published peaks of device types, for rooflines and memory limits.

Figures are the makers' data sheets and white papers, each row's named in `source`: peaks without
sparsity, tensor cores with float32 accumulation. What could be checked, and against what, stands in
datasets/clusters/SOURCES.md. A profile estimated from them is marked as an
estimate. A GPU that is not listed is asked for, never guessed.
"""

from dataclasses import dataclass

from autosync.errors import InvalidInput, NotSupported

PCIE_3, PCIE_4, PCIE_5 = 126.0, 252.0, 504.0
"""Gbit/s of 16 lanes in each direction (PCI-SIG: 8, 16 and 32 GT/s, 128b/130b)."""
C2C = 3600.0
"""Gbit/s in each direction of NVLink-C2C between a Grace CPU and its GPU (data sheet: 900 GB/s,
both directions together)."""


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A GPU (of a board with two, one of them), a CPU, or a CPU whose tensors stand for a GPU's.

    peak_flops_per_second: of float32. tf32: that is on tensor cores, as TF32. fp32: without them,
        where `tf32`.
    fp16, bf16, fp8: peak FLOPs a second of these types, 0 where the device has no units for them:
        it then computes at the rate of float32.
    pcie_gbps, nvlinks, nvlink_gbps: Gbit/s in each direction of its slot (or of the NVLink-C2C that
        joins it to its CPU) and of each of its NVLinks. nvlink_generation: 2 to 5; 0 without.
        nvlink_bridge: it has them only where a bridge joins two cards.
    host_beside: there is host memory beside its own, in which tensors can wait.
    year: of its introduction. source: where the figures stand.
    """

    peak_flops_per_second: float
    memory_bytes_per_second: float
    memory_gb: float
    is_gpu: bool = True
    tf32: bool = False
    fp32: float = 0.0
    fp16: float = 0.0
    bf16: float = 0.0
    fp8: float = 0.0
    pcie_gbps: float = PCIE_3
    nvlinks: int = 0
    nvlink_gbps: float = 0.0
    nvlink_bridge: bool = False
    nvlink_generation: int = 0
    host_beside: bool = True
    year: int = 0
    source: str = ""

    @property
    def nvlink_bytes_per_second(self) -> float:
        """Of all its NVLinks together in each direction, as sold."""
        return self.nvlinks * self.nvlink_gbps * 1e9 / 8

    def flops_per_second(self, dtype: str, tf32: bool = True) -> float:
        """Peak of a type that graphs name. float64 counts as float32: no row has its rate. tf32:
        whether float32 may be computed as TF32."""
        own = {"float16": self.fp16, "bfloat16": self.bf16}.get(dtype, 0.0)
        if not own and self.tf32 and not tf32:
            return self.fp32
        return own or self.peak_flops_per_second


DEVICE_TYPES: dict[str, DeviceType] = {
    "cpu": DeviceType(
        1.0e11, 2.0e10, 8.0, is_gpu=False, host_beside=False,
        source="one core's order of magnitude",
    ),
    "arena": DeviceType(
        1.0e11, 2.0e10, 8.0, is_gpu=False,
        source="a CPU whose tensors are held to a stated budget",
    ),
    "k40": DeviceType(4.29e12, 2.88e11, 12.0, year=2013, source="Tesla K40 board specification"),
    "k80": DeviceType(4.1e12, 2.4e11, 12.0, year=2014, source="Tesla K80 board specification"),
    "m60": DeviceType(4.8e12, 1.6e11, 8.0, year=2015, source="Tesla M60 data sheet"),
    "titan-x": DeviceType(6.7e12, 3.4e11, 12.0, year=2015, source="GeForce GTX Titan X (GM200)"),
    "gtx-1080-ti": DeviceType(
        1.13e13, 4.84e11, 11.0, year=2017, source="GeForce GTX 1080 Ti specification"
    ),
    "p100": DeviceType(
        9.5e12, 7.32e11, 16.0, fp16=1.87e13, year=2016, source="Tesla P100 PCIe data sheet"
    ),
    "t4": DeviceType(8.1e12, 3.2e11, 16.0, fp16=6.5e13, year=2018, source="T4 data sheet"),
    "rtx-2080-ti": DeviceType(
        1.345e13, 6.16e11, 11.0, fp16=5.38e13, nvlinks=2, nvlink_gbps=200.0, nvlink_generation=2,
        nvlink_bridge=True,
        year=2018, source="Turing white paper, table 1",
    ),
    "v100": DeviceType(
        1.57e13, 9.0e11, 32.0, fp16=1.25e14, nvlinks=6, nvlink_gbps=200.0, nvlink_generation=2,
        year=2017, source="V100 SXM2 data sheet; also with 16 GB",
    ),
    "rtx-3090": DeviceType(
        3.56e13, 9.36e11, 24.0, tf32=True, fp32=3.56e13, fp16=7.1e13, bf16=7.1e13, pcie_gbps=PCIE_4,
        nvlinks=4, nvlink_gbps=112.5, nvlink_generation=3, nvlink_bridge=True, year=2020,
        source="GA102 white paper, table 2",
    ),
    "rtx-4090": DeviceType(
        8.26e13, 1.008e12, 24.0, tf32=True, fp32=8.26e13, fp16=1.652e14, bf16=1.652e14,
        fp8=3.303e14,
        pcie_gbps=PCIE_4, year=2022, source="Ada white paper, table 2",
    ),
    "rtx-a6000": DeviceType(
        7.74e13, 7.68e11, 48.0, tf32=True, fp32=3.87e13, fp16=1.548e14, bf16=1.548e14,
        pcie_gbps=PCIE_4,
        nvlinks=4, nvlink_gbps=112.5, nvlink_generation=3, nvlink_bridge=True, year=2020,
        source="RTX A6000 data sheet",
    ),
    "a10": DeviceType(
        6.25e13, 6.0e11, 24.0, tf32=True, fp32=3.12e13, fp16=1.25e14, bf16=1.25e14,
        pcie_gbps=PCIE_4,
        year=2021, source="A10 data sheet",
    ),
    "a10g": DeviceType(
        3.5e13, 6.0e11, 24.0, tf32=True, fp32=3.5e13, fp16=7.0e13, bf16=7.0e13, pcie_gbps=PCIE_4,
        year=2021, source="A10G data sheet",
    ),
    "a40": DeviceType(
        7.48e13, 6.96e11, 48.0, tf32=True, fp32=3.74e13, fp16=1.497e14, bf16=1.497e14,
        pcie_gbps=PCIE_4,
        nvlinks=4, nvlink_gbps=112.5, nvlink_generation=3, nvlink_bridge=True, year=2020,
        source="A40 data sheet",
    ),
    "l4": DeviceType(
        6.0e13, 3.0e11, 24.0, tf32=True, fp32=3.03e13, fp16=1.21e14, bf16=1.21e14, fp8=2.425e14,
        pcie_gbps=PCIE_4, year=2023, source="L4 data sheet",
    ),
    "l40s": DeviceType(
        1.83e14, 8.64e11, 48.0, tf32=True, fp32=9.16e13, fp16=3.62e14, bf16=3.62e14, fp8=7.33e14,
        pcie_gbps=PCIE_4, year=2023, source="L40S data sheet",
    ),
    "a100": DeviceType(
        1.56e14, 1.555e12, 40.0, tf32=True, fp32=1.95e13, fp16=3.12e14, bf16=3.12e14,
        pcie_gbps=PCIE_4,
        nvlinks=12, nvlink_gbps=200.0, nvlink_generation=3, year=2020,
        source="A100 40GB SXM4 data sheet",
    ),
    "a100-80gb": DeviceType(
        1.56e14, 2.039e12, 80.0, tf32=True, fp32=1.95e13, fp16=3.12e14, bf16=3.12e14,
        pcie_gbps=PCIE_4,
        nvlinks=12, nvlink_gbps=200.0, nvlink_generation=3, year=2020,
        source="A100 80GB SXM4 data sheet",
    ),
    "h100": DeviceType(
        4.94e14, 3.35e12, 80.0, tf32=True, fp32=6.7e13, fp16=9.89e14, bf16=9.89e14, fp8=1.979e15,
        pcie_gbps=PCIE_5, nvlinks=18, nvlink_gbps=200.0, nvlink_generation=4, year=2022,
        source="H100 SXM5 data sheet",
    ),
    "h100-pcie": DeviceType(
        3.78e14, 2.0e12, 80.0, tf32=True, fp32=5.1e13, fp16=7.56e14, bf16=7.56e14, fp8=1.513e15,
        pcie_gbps=PCIE_5, nvlinks=12, nvlink_gbps=200.0, nvlink_generation=4, nvlink_bridge=True,
        year=2022,
        source="H100 PCIe data sheet",
    ),
    "gh200": DeviceType(
        4.94e14, 4.0e12, 96.0, tf32=True, fp32=6.7e13, fp16=9.89e14, bf16=9.89e14, fp8=1.979e15,
        pcie_gbps=C2C, nvlinks=18, nvlink_gbps=200.0, nvlink_generation=4, year=2023,
        source="GH200 data sheet, 96 GB HBM3; also with 144 GB HBM3e at 4.9 TB/s",
    ),
    "h20": DeviceType(
        7.4e13, 4.0e12, 96.0, tf32=True, fp32=4.4e13, fp16=1.48e14, bf16=1.48e14, fp8=2.96e14,
        pcie_gbps=PCIE_5, nvlinks=18, nvlink_gbps=200.0, nvlink_generation=4, year=2023,
        source="H20 data sheet; also with 141 GB",
    ),
    "h200": DeviceType(
        4.94e14, 4.8e12, 141.0, tf32=True, fp32=6.7e13, fp16=9.89e14, bf16=9.89e14, fp8=1.979e15,
        pcie_gbps=PCIE_5, nvlinks=18, nvlink_gbps=200.0, nvlink_generation=4, year=2023,
        source="H200 SXM data sheet",
    ),
    "b200": DeviceType(
        1.1e15, 7.7e12, 180.0, tf32=True, fp32=7.5e13, fp16=2.25e15, bf16=2.25e15, fp8=4.5e15,
        pcie_gbps=PCIE_5, nvlinks=18, nvlink_gbps=400.0, nvlink_generation=5, year=2024,
        source="HGX B200 data sheet",
    ),
    "gb200": DeviceType(
        1.25e15, 8.0e12, 186.0, tf32=True, fp32=8e13, fp16=2.5e15, bf16=2.5e15, fp8=5.0e15,
        pcie_gbps=C2C / 2, nvlinks=18, nvlink_gbps=400.0, nvlink_generation=5, year=2024,
        source="GB200 NVL72 data sheet; two GPUs share the CPU's C2C",
    ),
    "b300": DeviceType(
        1.125e15, 8.0e12, 270.0, tf32=True, fp32=7.5e13, fp16=2.25e15, bf16=2.25e15, fp8=4.5e15,
        pcie_gbps=2 * PCIE_5, nvlinks=18, nvlink_gbps=400.0, nvlink_generation=5, year=2025,
        source="HGX B300 data sheet",
    ),
    "gb300": DeviceType(
        1.25e15, 8.0e12, 279.0, tf32=True, fp32=8e13, fp16=2.5e15, bf16=2.5e15, fp8=5.0e15,
        pcie_gbps=C2C / 2, nvlinks=18, nvlink_gbps=400.0, nvlink_generation=5, year=2025,
        source="GB300 NVL72 data sheet; two GPUs share the CPU's C2C",
    ),
    "gb10": DeviceType(
        6.2e13, 2.73e11, 128.0, tf32=True, fp32=3.1e13, fp16=1.25e14, bf16=1.25e14, fp8=2.5e14,
        host_beside=False, year=2025,
        source="DGX Spark data sheet: memory shared with the CPU; 1 PFLOPS FP4 with sparsity, of "
        "which the other types are the usual fractions",
    ),
    "mi300x": DeviceType(
        1.634e14, 5.3e12, 192.0, fp16=1.307e15, bf16=1.307e15, fp8=2.615e15, pcie_gbps=PCIE_5,
        year=2023, source="Instinct MI300X data sheet; float32 without TF32",
    ),
}  # fmt: skip

OTHER_CHIPS = frozenset(
    {"ti", "super", "laptop", "mobile", "max", "d", "ada", "mig", "nvl", "(pascal)"}
)
"""Words of a name that make it another device: an RTX 3090 Ti, a laptop's RTX 4090, a MIG slice, a
Titan X of the generation after the one listed."""


def gpu_types() -> tuple[str, ...]:
    """The device types that are GPUs."""
    return tuple(name for name, device in DEVICE_TYPES.items() if device.is_gpu)


def device_type_of_gpu(name: str, stated: str | None = None) -> str:
    """The device type of a GPU that calls itself `name` ("NVIDIA GeForce RTX 2080 Ti").

    stated: what the user says it is; then the name does not count.

    Raises:
        InvalidInput: `stated` is the type of no GPU.
        NotSupported: the name holds no known type, and none is stated.
    """
    gpus = gpu_types()
    if stated is not None:
        if stated not in gpus:
            raise InvalidInput(
                f"device_type {stated!r} is the type of no GPU.",
                thing="device_type",
                value=stated,
                remedy=f"Known: {', '.join(gpus)}.",
            )
        return stated
    words = set(name.lower().replace("-", " ").split())  # whole words: an L40S is no L4
    found = [
        kind
        for kind in gpus
        if words.issuperset(parts := kind.split("-")) and not words & OTHER_CHIPS - {*parts}
    ]
    if not found:
        raise NotSupported(
            f"GPU {name!r} is of no known device type.",
            thing="device_type",
            value=name,
            remedy="State the known type that computes most like it, as device_type; it counts "
            f"where a cluster mixes types, and names the profile. Known: {', '.join(gpus)}.",
        )
    return max(found, key=len)
