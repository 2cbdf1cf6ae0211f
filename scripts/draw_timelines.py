#!/usr/bin/env python3
"""Draw the measured timeline of every synchronizer: docs/synchronizers/*.svg.

scripts/draw_timelines.py [NAME ...]

Each is one iteration of a replay on the emulated cluster, as rank 0 saw it: compute on top, then
a lane per channel. A thin line begins when a message is issued and ends when it has landed; its
thick part is where it is the oldest of its channel, which is when the wire works for it.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autosync.bundle import bundle  # noqa: E402
from autosync.cluster import Cluster  # noqa: E402
from autosync.domain import Domain  # noqa: E402
from autosync.strategy import Encoding, Strategy  # noqa: E402
from autosync.trials.contract import TrialRequest  # noqa: E402
from benchmarks.emulated import SCALES, cluster, domain_at, open_testbed  # noqa: E402
from benchmarks.recording import TIMELINES  # noqa: E402
from search import designs  # noqa: E402

FOLDER = ROOT / "docs" / "synchronizers"
ITERATIONS = 7
COLOURS = {"forward": "#7aa6c2", "backward": "#3b6e8f", "wait": "#c9ced3"}
LANES = {
    "GRADIENT": "#d1495b",
    "VALUE": "#edae49",
    "PUSH": "#d1495b",
    "PULL": "#edae49",
    "LOCAL_REDUCE": "#66a182",
    "LOCAL_BROADCAST": "#8d6a9f",
}
NAMES = {
    "GRADIENT": "gradients",
    "VALUE": "second half",
    "PUSH": "push",
    "PULL": "pull",
    "LOCAL_REDUCE": "reduce in node",
    "LOCAL_BROADCAST": "broadcast in node",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """model at rho on a cluster, synchronized by a hand-designed strategy."""

    name: str
    title: str
    model: str
    rho: float
    strategy: Callable[[Domain], Strategy]
    on: Cluster | None = None


def in_bf16(domain: Domain) -> Strategy:
    plain = designs.all_reduce_25mb(domain)
    choices = tuple(
        replace(
            choice,
            shards=tuple(replace(shard, encoding=Encoding("bf16")) for shard in choice.shards),
        )
        for choice in plain.choices
    )
    return replace(plain, choices=choices)


PICTURES = (
    Picture(
        "all_reduce", "ring all-reduce, groups of 25 MiB", "resnet50", 1, designs.all_reduce_25mb
    ),
    Picture("ddp", "torch's DDP", "resnet50", 1, designs.ddp),
    Picture(
        "parameter_server",
        "parameter server, 4 MiB pieces",
        "resnet50",
        1,
        designs.ps_bandwidth_weighted,
    ),
    Picture(
        "reduce_scatter",
        "reduce-scatter in backward, all-gather into forward (DeAR)",
        "resnet50",
        1,
        designs.dear,
    ),
    Picture(
        "priority",
        "all-reduce in 4 MiB slices, nearest use first",
        "resnet50",
        1,
        designs.priority_sliced,
    ),
    Picture(
        "reduce_scatter_sliced",
        "reduce-scatter and all-gather in 4 MiB slices",
        "resnet50",
        1,
        designs.dear_sliced,
    ),
    Picture(
        "hierarchical",
        "hierarchical all-reduce on 2 nodes x 2 ranks",
        "resnet50",
        1,
        designs.hierarchical_all_reduce,
        cluster(2, 2),
    ),
    Picture("tree", "tree all-reduce", "resnet50", 1, designs.tree_all_reduce),
    Picture("encodings", "all-reduce in bf16", "resnet50", 1, in_bf16),
    Picture("sparse", "touched rows gathered", "ncf_sparse", 20, designs.all_reduce_25mb),
    Picture(
        "factors",
        "sufficient factors, sliced all-reduce for the rest",
        "vgg16",
        1,
        designs.factors_all_reduce,
    ),
)


def record(picture: Picture, folder: Path) -> tuple[dict[str, Any], float]:
    """What rank 0 recorded, and real seconds per reported second."""
    domain = domain_at(picture.model, picture.rho, picture.on)
    scales = SCALES[picture.model]
    with open_testbed(domain, scales, "recording") as pool:
        asked = bundle(picture.strategy(domain), domain)
        result = pool.run(TrialRequest(picture.name, asked, warmup=2, iterations=ITERATIONS))
        if result.error is not None:
            raise SystemExit(f"{picture.name}: {result.error.message}\n{result.error.stderr_tail}")
        last = bundle(designs.ddp(domain), domain)
        pool.run(TrialRequest("end", last, warmup=0, iterations=1))
    recorded: dict[str, Any] = json.loads((folder / f"{picture.name}.0.json").read_text())
    return recorded, scales.time_scale


def usual_iteration(starts: list[float]) -> int:
    """The measured iteration whose period is nearest to the median."""
    periods = np.diff(starts)[2:]
    return 2 + int(np.argmin(abs(periods - np.median(periods))))


def spans(waits: list[list[float]], start: float, stop: float, gap: float) -> list[list[float]]:
    """(start, length) of compute between two instants; neighbours within `gap` are one."""
    joined: list[list[float]] = []
    for begin, end in waits:
        begin, end = max(begin, start), min(end, stop)
        if end <= begin:
            continue
        if joined and begin - joined[-1][1] < gap:
            joined[-1][1] = end
        else:
            joined.append([begin, end])
    return [[begin, end - begin] for begin, end in joined]


def draw(picture: Picture, recorded: dict[str, Any], scale: float) -> None:
    which = usual_iteration(recorded["starts"])
    zero, stop = recorded["starts"][which], recorded["starts"][which + 1]
    middle = recorded["backwards"][which]
    unit = 1e3 / scale  # reported milliseconds
    events = [
        e for e in recorded["events"] if e["end_seconds"] > zero and e["start_seconds"] < stop
    ]
    lanes = [name for name in LANES if any(e["channel"] == name for e in events)]
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.42 * (1 + len(lanes))))
    for name, begin, end in (("forward", zero, middle), ("backward", middle, stop)):
        bars = spans(recorded["waits"], begin, end, 4e-4)
        axes.broken_barh(
            [((a - zero) * unit, length * unit) for a, length in bars],
            (-0.35, 0.7),
            color=COLOURS[name],
            label=name,
        )
    for lane, name in enumerate(lanes, start=1):
        _draw_lane(axes, lane, [e for e in events if e["channel"] == name], zero, stop, unit, name)
    axes.set_yticks(range(len(lanes) + 1), ["compute", *(NAMES[name] for name in lanes)])
    axes.set_xlim(0, (stop - zero) * unit)
    axes.invert_yaxis()
    axes.set_xlabel("ms from the start of forward")
    axes.set_title(f"{picture.title}: {(stop - zero) * unit:.1f} ms", fontsize=10, loc="left")
    axes.legend(loc="upper right", fontsize=7, ncols=2, frameon=False, bbox_to_anchor=(1, 1.25))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(FOLDER / f"{picture.name}.svg", metadata={"Date": None})
    plt.close(figure)


def _draw_lane(
    axes: Axes,
    lane: int,
    events: list[dict[str, Any]],
    zero: float,
    stop: float,
    unit: float,
    name: str,
) -> None:
    landed = 0.0
    for turn, event in enumerate(sorted(events, key=lambda e: e["end_seconds"])):
        start, end = event["start_seconds"], min(event["end_seconds"], stop)
        offset = 0.16 * (turn % 2) - 0.08
        axes.plot(
            [(max(start, zero) - zero) * unit, (end - zero) * unit],
            [lane + offset] * 2,
            color=LANES[name],
            linewidth=0.6,
            alpha=0.5,
        )
        busy = max(start, landed, zero)
        if end > busy:
            axes.broken_barh(
                [((busy - zero) * unit, (end - busy) * unit)],
                (lane - 0.3, 0.6),
                color=LANES[name],
                edgecolor="white",
                linewidth=0.5,
            )
        landed = max(landed, event["end_seconds"])


def main() -> None:
    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "timeline"
    wanted = sys.argv[1:] or [picture.name for picture in PICTURES]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[TIMELINES] = folder
        for picture in PICTURES:
            if picture.name in wanted:
                draw(picture, *record(picture, Path(folder)))
                print(FOLDER / f"{picture.name}.svg")


if __name__ == "__main__":
    main()
