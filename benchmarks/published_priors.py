"""What is known of each constant before the fit: data sheets, standards and other measurements."""

from typing import NamedTuple

from autosync.simulator.cost.fitted_constants import (
    PAYLOAD_SHARE,
    PHYSICAL_BOUNDS,
    CalibratedRange,
    Constants,
    NetworkConstants,
)

MEASURED = (
    "Shi et al. 2020 (arXiv 2005.13247): synchronous training of ResNet-50 and BERT-Base on 4, 8 "
    "and 16 GPUs, nodes of 4 GPUs on PCIe, PyTorch 1.4, NCCL 2.4, Horovod 0.19, BytePS 0.2"
)


class Prior(NamedTuple):
    """value, and log_width: one standard deviation of its logarithm; 0 where it is not fitted.
    most: its physical bound."""

    value: float
    log_width: float
    most: float
    why: str


PRIORS: dict[str, Prior] = {
    "intra_bandwidth_gbps": Prior(
        64.0,
        0.2,
        PHYSICAL_BOUNDS["intra_bandwidth_gbps"][1],
        "half of what PCIe 3.0 x16 carries: without peer-to-peer every byte passes host memory",
    ),
    "hidden_share": Prior(
        0.04,
        0.5,
        PHYSICAL_BOUNDS["hidden_share"][1],
        "launch gaps and input copies of a step, beside which copies of gradients are free",
    ),
    "transfer_slowdown": Prior(
        1.5,
        0.5,
        PHYSICAL_BOUNDS["transfer_slowdown"][1],
        "a collective's kernels wait for multiprocessors that compute holds",
    ),
    "straggler_share": Prior(
        0.006,
        0.0,
        PHYSICAL_BOUNDS["straggler_share"][1],
        "steps of one device vary by some 0.5 %; the rows say no more",
    ),
    "message_us": Prior(60.0, 0.7, 1000.0, "tens of microseconds to launch a collective"),
    "hop_us": Prior(4.0, 0.7, 500.0, "a kernel's handshake through host memory"),
    "10gbe_payload_share": Prior(0.94, 0.03, PAYLOAD_SHARE["tcp"], "TCP at an MTU of 1500"),
    "10gbe_hop_us": Prior(
        70.0,
        0.5,
        500.0,
        "TCP between two hosts: 25 to 50 us and copies through the host; on 16 such nodes an "
        "all-reduce of 1 MB takes 4.5 ms, of 0.5 MB 3.9 ms (DeAR, section II-D)",
    ),
    "10gbe_server_gbps": Prior(
        7.0, 0.3, 10.0 * PAYLOAD_SHARE["tcp"], "a few cores receive, sum and send by TCP"
    ),
    "ib100_payload_share": Prior(0.97, 0.0, PAYLOAD_SHARE["rdma"], "the slot binds first"),
    "ib100_hop_us": Prior(15.0, 0.0, 500.0, "RDMA through host memory and a proxy thread"),
    "bytescheduler_us": Prior(3000.0, 0.5, 100_000.0, "a scheduler of Python threads"),
}
"""Twelve constants, nine of them fitted."""


def constants_at(values: dict[str, float], calibrated: CalibratedRange) -> Constants:
    """The constants that these values of PRIORS stand for."""

    def seconds(name: str) -> float:
        return float(f"{values[name] * 1e-6:.6g}")

    return Constants(
        name="rtx-2080-ti",
        clusters=("rtx-2080-ti-*",),
        device="rtx-2080-ti",
        intra_bandwidth_gbps=values["intra_bandwidth_gbps"],
        hidden_share=values["hidden_share"],
        straggler_share=values["straggler_share"],
        transfer_slowdown=values["transfer_slowdown"],
        message_seconds=seconds("message_us"),
        hop_seconds=seconds("hop_us"),
        networks={
            "10gbe": NetworkConstants(
                "tcp",
                10.0,
                values["10gbe_payload_share"],
                seconds("10gbe_hop_us"),
                values["10gbe_server_gbps"],
            ),
            "ib100": NetworkConstants(
                "rdma", 100.0, values["ib100_payload_share"], seconds("ib100_hop_us")
            ),
        },
        engine_seconds={"bytescheduler": seconds("bytescheduler_us")},
        calibrated=calibrated,
        measured=MEASURED,
        fitted=f"{sum(prior.log_width > 0 for prior in PRIORS.values())} constants to 84 rows, "
        "each with a physical prior and bound (benchmarks/published_rows.py --fit)",
    )
