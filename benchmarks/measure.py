"""Paired, interleaved measurements: every way runs once a round, in an order that rotates, and
is compared with the reference of its own round. Slow drifts of the machine cancel; what is left
is shown by the 10th and 90th percentile of the paired ratios.
"""

import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autosync.bundle import make_bundle
from autosync.domain import Domain
from autosync.search.designs import known_designs
from autosync.strategy import Strategy
from autosync.trials.contract import TrialRequest, TrialResult
from autosync.trials.machine import usable_cores
from autosync.trials.pool.process_pool import ProcessPool
from benchmarks.output import in_turn


@dataclass(frozen=True, slots=True)
class Way:
    """One way to synchronize."""

    name: str
    strategy: Strategy


@dataclass(frozen=True, slots=True)
class PairedRow:
    """A way's figures over all rounds; ratios are to the reference of the same round.

    bound_share: the bound over the median (1 is ideal); None where no bound was given.
    """

    case: str
    way: str
    step_seconds: float
    ratio: float
    ratio_p10: float
    ratio_p90: float
    rounds: int
    outside_load: float
    bound_share: float | None = None
    error: str = ""


def paired(
    pool: ProcessPool,
    domain: Domain,
    case: str,
    ways: Sequence[Way],
    rounds: int,
    iterations: int,
    bound_seconds: float | None = None,
    warmup: int = 2,
) -> list[PairedRow]:
    """The rows of all ways, the first being the reference. A way that fails has an error."""
    bundles = [make_bundle(way.strategy, domain) for way in ways]
    results: list[list[TrialResult]] = [[] for _ in ways]
    for number in range(rounds):
        for which in in_turn(range(len(ways)), number):
            if results[which] and results[which][-1].error is not None:
                continue
            key = f"{case}/{ways[which].name}/{number}"
            request = TrialRequest(key, bundles[which], warmup=warmup, iterations=iterations)
            results[which].append(pool.run(request))
    reference = [result.step_seconds or np.nan for result in results[0]]
    reference += [np.nan] * (rounds - len(reference))  # a way that failed is not tried again
    return [
        _row(case, way, mine, reference, bound_seconds)
        for way, mine in zip(ways, results, strict=True)
    ]


def _row(
    case: str,
    way: Way,
    results: list[TrialResult],
    reference: list[float],
    bound_seconds: float | None,
) -> PairedRow:
    failed = next((result.error for result in results if result.error is not None), None)
    if failed is not None:
        nan = float("nan")
        return PairedRow(case, way.name, nan, nan, nan, nan, 0, nan, None, failed.message)
    seconds = np.array([result.step_seconds for result in results], dtype=float)
    ratios = seconds / np.array(reference[: len(seconds)])
    median = float(np.median(seconds))
    low, middle, high = np.nanpercentile(ratios, (10, 50, 90))
    return PairedRow(
        case=case,
        way=way.name,
        step_seconds=median,
        ratio=float(middle),
        ratio_p10=float(low),
        ratio_p90=float(high),
        rounds=len(seconds),
        outside_load=float(np.median([result.load or 0.0 for result in results])),
        bound_share=bound_seconds / median if bound_seconds else None,
    )


def ddp_way(domain: Domain) -> Way:
    return Way("DDP", known_designs.ddp(domain))


def provenance() -> dict[str, Any]:
    """What figures depend on, and must be printed with."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": usable_cores(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"),
    }


def print_title(title: str) -> None:
    """With what figures depend on."""
    print(title)
    print("  " + ", ".join(f"{name} {value}" for name, value in provenance().items()))


def print_rows(rows: Sequence[PairedRow]) -> None:
    """A table of one case."""
    print(f"\n  {rows[0].case}, {rows[0].rounds} rounds")
    print(f"    {'':34s}{'ms':>9s}{'x ref':>8s}{'p10':>7s}{'p90':>7s}{'of bound':>10s}{'load':>7s}")
    for row in rows:
        if row.error:
            print(f"    {row.way:34s} failed: {row.error[:100]}")
            continue
        share = "" if row.bound_share is None else f"{row.bound_share:.1%}"
        print(
            f"    {row.way:34s}{row.step_seconds * 1e3:9.2f}{row.ratio:8.3f}"
            f"{row.ratio_p10:7.3f}{row.ratio_p90:7.3f}{share:>10s}"
            f"{row.outside_load:7.0%}"
        )
    sys.stdout.flush()
