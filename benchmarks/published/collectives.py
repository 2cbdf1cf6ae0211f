"""Predicts published sweeps of nccl-tests and prints every one beside what was measured.

python -m benchmarks.published.collectives [--left-out system] [--rows] [--fit] [--plot FILE]

--left-out system: by constants that were fitted without the sweep's system (some minutes).
--rows: every size of every sweep.
--fit: fit the constants anew and write them to datasets/nccl (some minutes).
--plot: a figure of all sweeps by left-out constants, as SVG.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.backends.nccl import collective_times
from autosync.simulator.backends.nccl.constants import constants, fitted_constants
from benchmarks.output import measurements, option_parser, print_head, print_row, pyplot, save_svg
from benchmarks.published.collective_fit import (
    Predicted,
    complete_sweeps,
    fitted,
    interval_scale,
    left_out,
    predict,
    write,
)
from benchmarks.published.collective_rows import (
    SMALL_BYTES,
    Sweep,
    read_socket_rows,
    read_sweeps,
    topology_of_statement,
)

F64 = NDArray[np.float64]

LARGE_BYTES = 2.0**20


def print_sweeps(found: tuple[Predicted, ...], rows: bool) -> None:
    """A line for every sweep: errors of 1 MiB and more; latency and peak, measured / predicted."""
    columns = "1 MiB and more", "worst", "latency, us", "GB/s"
    print_head("sweep", "operation", "nodes x GPUs", *columns)
    for each in found:
        sweep, topology = each.sweep, each.sweep.topology
        where = f"{topology.nodes} x {topology.gpus_per_node} {topology.gpu}"
        print_row(sweep.name, sweep.operation, where, *_cells(each))
        if rows:
            for size, measured, seconds in zip(
                sweep.size_bytes, sweep.seconds, each.seconds, strict=True
            ):
                print(f"    {size:12.0f} B  {measured * 1e6:11.1f} us  {seconds * 1e6:11.1f} us")


def _cells(each: Predicted) -> Iterator[str]:
    sweep = each.sweep
    large, small = sweep.size_bytes >= LARGE_BYTES, sweep.size_bytes < SMALL_BYTES
    off = errors(each)[large]
    yield f"{np.median(off):.0%}" if len(off) else ""
    yield f"{off.max():.0%}" if len(off) else ""
    both = sweep.seconds, each.seconds
    yield " / ".join(f"{seconds[small].min() * 1e6:.3g}" for seconds in both if small.any())
    moved = sweep.bus_factor * sweep.size_bytes * 1e-9
    yield " / ".join(f"{(moved / seconds)[large].max():.3g}" for seconds in both if large.any())


def errors(each: Predicted) -> F64:
    """Relative, of the measured seconds over the predicted, `(n,)`."""
    result: F64 = np.abs(each.sweep.seconds / each.seconds - 1.0)
    return result


def summary(found: tuple[Predicted, ...], scale: float) -> dict[str, tuple[float, float]]:
    """Median and worst decile of relative errors by class of size; share of rows within their
    intervals, twice. Latencies are those of sweeps with a process for each GPU."""
    large, latency, largest, within = [], [], [], []
    for each in found:
        sweep, off = each.sweep, errors(each)
        is_large, is_small = sweep.size_bytes >= LARGE_BYTES, sweep.size_bytes < SMALL_BYTES
        large += off[is_large].tolist()
        if is_large.any():
            largest.append(float(off[-1]))
        if is_small.any() and not sweep.one_process:
            least = sweep.seconds[is_small].min() / each.seconds[is_small].min()
            latency.append(abs(float(least) - 1.0))
        low, high = each.interval(scale)
        within += ((low <= sweep.seconds) & (sweep.seconds <= high)).tolist()
    kinds = {"1 MiB and more": large, "latency below 64 KiB": latency, "largest size": largest}
    found_errors = {
        name: (float(np.median(off)), float(np.quantile(off, 0.9))) for name, off in kinds.items()
    }
    share = float(np.mean(within))
    return {**found_errors, "rows within their intervals": (share, share)}


def print_summary(title: str, found: tuple[Predicted, ...], scale: float) -> None:
    print(f"\n{title}: {len(found)} sweeps and statements\n")
    print_head("", "median", "worst decile")
    for name, (median, worst) in summary(found, scale).items():
        print_row(name, f"{median:.1%}", f"{worst:.1%}")


def algorithms_stated() -> list[tuple[str, str, str]]:
    """What ran where, the algorithm that NCCL chose as its source states it, and the predicted."""
    found = []
    for record in measurements("statements.csv"):
        stated = record["condition"].partition("NCCL picks ")[2].rstrip(")")
        if stated:
            size_bytes = np.array([float(record["size_bytes"])])
            times = collective_times(topology_of_statement(record), record["op"], size_bytes)
            what = f"{record['system']}, {record['gpus_per_node']} GPUs"
            found.append((what, stated, times.algorithm[0]))
    return found


def socket_errors() -> list[tuple[Sweep, F64, F64]]:
    """Rows over sockets at 25 to 100 Gbit/s, to none of which constants were fitted: measured and
    predicted bus bandwidths in GB/s, `(n,)`."""
    found = []
    for sweep in read_socket_rows():
        moved = sweep.bus_factor * sweep.size_bytes * 1e-9
        found.append((sweep, moved / sweep.seconds, moved / predict(sweep, constants()).seconds))
    return found


def plot(found: tuple[Predicted, ...], path: Path) -> None:
    """Bus bandwidth of every row, measured against predicted, by transport."""
    figure, axes = pyplot("autosync").subplots(figsize=(6.4, 5.6), layout="constrained")
    names = dict.fromkeys(each.sweep.topology.network or "one node" for each in found)
    for name in names:
        rates: list[tuple[float, float]] = []
        for each in found:
            sweep = each.sweep
            if (sweep.topology.network or "one node") == name:
                moved = sweep.bus_factor * sweep.size_bytes * 1e-9
                rates += zip(moved / each.seconds, moved / sweep.seconds, strict=True)
        predicted, measured = np.array(rates).T
        axes.scatter(predicted, measured, s=8, alpha=0.7, label=name)
    limits = np.array([1e-4, 2e3])
    axes.plot(limits, limits, color="black", linewidth=0.8)
    for factor in (0.7, 1.3):
        axes.plot(limits, limits * factor, color="grey", linewidth=0.5, linestyle="--")
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    axes.set_xlabel("predicted bus bandwidth, GB/s (constants without the row's system)")
    axes.set_ylabel("measured bus bandwidth, GB/s")
    axes.legend(fontsize="small")
    save_svg(figure, path)


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--left-out", choices=("system",))
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    if given.fit:
        write(fitted(complete_sweeps()), interval_scale(left_out()))
        fitted_constants.cache_clear()
        constants.cache_clear()
    scale = fitted_constants().interval_scale
    if given.left_out:
        title, found = "Each system by constants fitted without it", left_out()
    else:
        title = "In sample"
        found = tuple(predict(sweep, constants()) for sweep in complete_sweeps())
    print_sweeps(found, given.rows)
    print_summary(title, found, scale)
    print("\nAlgorithms that sources state:")
    for what, stated, predicted in algorithms_stated():
        print(f"- {what}: {stated}; predicted {predicted}")
    print("\nOver TCP sockets, GB/s measured and predicted by constants that saw none of them:")
    for sweep, stated_rates, rates in socket_errors():
        where = f"{sweep.topology.nodes} x {sweep.topology.gpus_per_node}"
        pairs = zip(stated_rates, rates, strict=True)
        both = ", ".join(f"{a:.2f} {b:.2f} ({b / a - 1:+.0%})" for a, b in pairs)
        print(f"- {sweep.name}, {where}: {both}{'; ' * bool(sweep.why)}{sweep.why}")
    for sweep in read_sweeps():
        if not sweep.complete:
            print(f"Not predicted: {sweep.name}, {sweep.why}")
    if given.plot:
        plot(left_out(), given.plot)


if __name__ == "__main__":
    main()
