#!/usr/bin/env python3
"""Draw the measured timeline of every synchronizer: docs/synchronizers/*.svg.

scripts/draw_timelines.py [NAME ...]

Each is one recorded iteration of a replay on the emulated cluster, as rank 0 saw it, with what of
it runs into the next one: compute on top, then a lane per channel. A thin line begins when a
message is issued and ends when it has landed; its thick part is where it is the oldest of its
channel, which is when the wire works for it.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for `benchmarks`, so imports of the project come after it

from autosync.bundle import make_bundle  # noqa: E402
from autosync.cluster import Cluster  # noqa: E402
from autosync.domain import Domain  # noqa: E402
from autosync.environment import PASSED_VARIABLE  # noqa: E402
from autosync.search.designs import known_designs  # noqa: E402
from autosync.strategy import AllReduce, Encoding, Strategy, VariableChoice  # noqa: E402
from autosync.trials.contract import MeasuredTimeline, TrialRequest  # noqa: E402
from benchmarks.ddp_buckets import BUCKETS  # noqa: E402
from benchmarks.emulated import SCALES, cluster, domain_at, open_testbed  # noqa: E402

FOLDER = ROOT / "docs" / "synchronizers"
ITERATIONS = 7
MS = 1e3
COLOURS = {"forward": "#7aa6c2", "backward": "#3b6e8f", "update": "#c9ced3"}
"""Of the phases of compute; where it waits for messages is a gap."""

LANES = {
    "GRADIENT": "#d1495b",
    "VALUE": "#edae49",
    "GATHER": "#edae49",
    "PUSH": "#d1495b",
    "PULL": "#edae49",
    "LOCAL_REDUCE": "#66a182",
    "LOCAL_BROADCAST": "#8d6a9f",
}
NAMES = {
    "GRADIENT": "gradients",
    "VALUE": "second half",
    "GATHER": "second half",
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
    plain = known_designs.all_reduce_25mb(domain)
    return replace(plain, choices=tuple(map(_choice_in_bf16, plain.choices)))


def _choice_in_bf16(choice: VariableChoice) -> VariableChoice:
    packed = Encoding("bf16")
    shards = (
        replace(shard, encoding=packed) if isinstance(shard, AllReduce) else shard
        for shard in choice.shards
    )
    return replace(choice, shards=tuple(shards))


PICTURES = (
    Picture(
        "all_reduce",
        "ring all-reduce, groups of 25 MiB",
        "resnet50",
        1,
        known_designs.all_reduce_25mb,
    ),
    Picture("ddp", "torch's DDP", "resnet50", 1, known_designs.ddp),
    Picture(
        "parameter_server",
        "parameter server, 4 MiB pieces",
        "resnet50",
        1,
        known_designs.ps_bandwidth_weighted,
    ),
    Picture(
        "reduce_scatter",
        "reduce-scatter in backward, all-gather into forward (DeAR)",
        "resnet50",
        1,
        known_designs.dear,
    ),
    Picture(
        "priority",
        "all-reduce in 4 MiB slices, nearest use first",
        "resnet50",
        1,
        known_designs.priority_sliced,
    ),
    Picture(
        "reduce_scatter_sliced",
        "reduce-scatter and all-gather in 4 MiB slices",
        "resnet50",
        1,
        known_designs.dear_sliced,
    ),
    Picture(
        "hierarchical",
        "hierarchical all-reduce on 2 nodes x 2 ranks",
        "resnet50",
        1,
        known_designs.hierarchical_all_reduce,
        cluster(2, 2),
    ),
    Picture("tree", "tree all-reduce", "resnet50", 1, known_designs.tree_all_reduce),
    Picture("encodings", "all-reduce in bf16", "resnet50", 1, in_bf16),
    Picture("sparse", "touched rows gathered", "ncf_sparse", 20, known_designs.all_reduce_25mb),
    Picture(
        "factors",
        "sufficient factors, sliced all-reduce for the rest",
        "vgg16",
        1,
        known_designs.factors_all_reduce,
    ),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A message in a lane; seconds from the forward start."""

    lane: str
    start_seconds: float
    end_seconds: float


def record(picture: Picture, folder: Path) -> tuple[MeasuredTimeline, list[Bar]]:
    """One measured iteration, and rank 0's messages of it."""
    domain = domain_at(picture.model, picture.rho, picture.on)
    scales = SCALES[picture.model]
    with open_testbed(domain, scales, "ddp_buckets") as pool:
        asked = make_bundle(picture.strategy(domain), domain)
        request = TrialRequest(picture.name, asked, warmup=2, iterations=ITERATIONS, record=True)
        result = pool.run(request)
        if result.error is not None:
            raise SystemExit(f"{picture.name}: {result.error.message}\n{result.error.stderr_tail}")
        last = make_bundle(known_designs.ddp(domain), domain)
        pool.run(TrialRequest("end", last, warmup=0, iterations=1))
    assert result.timeline is not None  # it was asked for
    times = result.timeline.ranks[0].messages
    if times is None:
        spans = json.loads((folder / f"{picture.name}.0.json").read_text())
        unit = scales.time_scale
        return result.timeline, [Bar("GRADIENT", a / unit, b / unit) for a, b in spans]
    lanes = [asked.plan.messages[message].channel.name for message in times.message]
    starts, ends = times.started_seconds, times.ended_seconds
    return result.timeline, [Bar(*one) for one in zip(lanes, starts, ends, strict=True)]


def draw(picture: Picture, timeline: MeasuredTimeline, bars: list[Bar]) -> None:
    compute = timeline.ranks[0].compute
    stop = max(timeline.step_seconds, *(bar.end_seconds for bar in bars))
    lanes = [name for name in LANES if any(bar.lane == name for bar in bars)]
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.42 * (1 + len(lanes))))
    spans = list(zip(compute.phase, compute.start_seconds, compute.stop_seconds, strict=True))
    for phase, colour in COLOURS.items():
        axes.broken_barh(
            [(a * MS, (b - a) * MS) for name, a, b in spans if name == phase],
            (-0.35, 0.7),
            color=colour,
            label=phase,
        )
    for lane, name in enumerate(lanes, start=1):
        _draw_lane(axes, lane, [bar for bar in bars if bar.lane == name], name)
    axes.set_yticks(range(len(lanes) + 1), ["compute", *(NAMES[name] for name in lanes)])
    axes.set_xlim(0, stop * MS)
    axes.axvline(timeline.step_seconds * MS, color="#888888", linewidth=0.6)
    axes.invert_yaxis()
    axes.set_xlabel("ms from the start of forward")
    step = timeline.step_seconds * MS
    axes.set_title(f"{picture.title}: {step:.1f} ms", fontsize=10, loc="left")
    axes.legend(loc="upper right", fontsize=7, ncols=3, frameon=False, bbox_to_anchor=(1, 1.25))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(FOLDER / f"{picture.name}.svg", metadata={"Date": None})
    plt.close(figure)


def _draw_lane(axes: Axes, lane: int, bars: list[Bar], name: str) -> None:
    landed = 0.0
    for turn, bar in enumerate(sorted(bars, key=lambda one: one.end_seconds)):
        offset = 0.16 * (turn % 2) - 0.08
        axes.plot(
            [bar.start_seconds * MS, bar.end_seconds * MS],
            [lane + offset] * 2,
            color=LANES[name],
            linewidth=0.6,
            alpha=0.5,
        )
        busy = max(bar.start_seconds, landed)
        axes.broken_barh(
            [(busy * MS, (bar.end_seconds - busy) * MS)],
            (lane - 0.3, 0.6),
            color=LANES[name],
            edgecolor="white",
            linewidth=0.5,
        )
        landed = bar.end_seconds


def main() -> None:
    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "timeline"
    wanted = sys.argv[1:] or [picture.name for picture in PICTURES]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({BUCKETS: folder, PASSED_VARIABLE: BUCKETS})
        for picture in PICTURES:
            if picture.name in wanted:
                draw(picture, *record(picture, Path(folder)))
                print(FOLDER / f"{picture.name}.svg")


if __name__ == "__main__":
    main()
