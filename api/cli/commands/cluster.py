"""`autosync cluster calibrate`: a cluster file with the collectives that logs measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autosync.api.cli.console import out, print_table, say, warn
from autosync.api.cli.options import ClusterName, RequiredOutput
from autosync.api.cli.output_files import check_writable
from autosync.collective_curve import CollectiveOperation

if TYPE_CHECKING:
    from autosync.cluster import Cluster
    from autosync.collective_curve import CollectiveCurve
    from autosync.interop.nccl_tests import Sweep

app = typer.Typer(help="Bring a cluster file closer to its cluster.", no_args_is_help=True)


@app.callback()
def cluster_commands() -> None:
    """Bring a cluster file closer to its cluster."""


@app.command("calibrate")
def calibrate(
    cluster: ClusterName,
    output: RequiredOutput,
    nccl_tests: Annotated[
        list[Path],
        typer.Option(
            "--nccl-tests",
            metavar="LOG",
            help="What all_reduce_perf, all_gather_perf and their like printed; may be repeated.",
            show_default=False,
        ),
    ],
    op: Annotated[
        CollectiveOperation | None,
        typer.Option(help="Which collective it is, where a log does not say.", show_default=False),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=2, help="How many ranks, where a log lists none.", show_default=False),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="On how many hosts, where a log lists none.", show_default=False),
    ] = None,
) -> None:
    """Write what logs of nccl-tests measured into a cluster file, as curves of its collectives.

    Predictions then pass through what was measured, and take NCCL's shape beyond it. A curve counts
    for its operation and, with less certainty, on other numbers of the same nodes. Curves of the
    cluster file that the logs measure too are replaced.

    Examples:

        autosync cluster calibrate aws-p5-48xlarge-x4 --nccl-tests all_reduce.log -o mine.yaml
        autosync collectives mine.yaml
    """
    from dataclasses import replace

    from autosync.api.cli.domain_arguments import load_named_cluster, read_bytes
    from autosync.cluster_file import save_cluster
    from autosync.interop.nccl_tests import Stated, merged_curves, read_nccl_tests

    check_writable(output)
    at = load_named_cluster(cluster)
    stated = Stated(op, ranks, nodes)
    sweeps = [
        sweep
        for log in nccl_tests
        for sweep in read_nccl_tests(
            read_bytes(log, "log").decode("utf-8", "replace"), str(log), stated
        )
    ]
    found = merged_curves(sweeps)
    measured = {curve.measured for curve in found}
    kept = tuple(curve for curve in at.curves if curve.measured not in measured)
    calibrated = replace(at, curves=(*kept, *found), nccl_version=_version(at.nccl_version, sweeps))
    save_cluster(calibrated, output)
    _print(calibrated, found)
    say(f"written to {output}: give it as CLUSTER")


def _version(stated: str, sweeps: "list[Sweep]") -> str:
    """The logs' where they agree and the file states none."""
    logged = {sweep.nccl_version for sweep in sweeps if sweep.nccl_version}
    if stated and logged - {stated}:
        warn(f"the logs are of NCCL {', '.join(sorted(logged))}, the cluster file says {stated}.")
    return stated or (logged.pop() if len(logged) == 1 else "")


def _print(cluster: "Cluster", curves: "tuple[CollectiveCurve, ...]") -> None:
    from autosync.collective_curve import bus_share

    hosts = sum(node.ranks > 0 for node in cluster.nodes)
    rows = []
    for curve in curves:
        busbw = bus_share(curve.operation, curve.ranks) * max(
            size / each for size, each in zip(curve.sizes_bytes, curve.seconds, strict=True)
        )
        rows.append(
            (
                str(curve),
                f"{curve.sizes_bytes[0]:.0f} to {curve.sizes_bytes[-1]:.0f}",
                f"{min(curve.seconds) * 1e6:.1f}",
                f"{busbw / 1e9:.1f}",
            )
        )
        if (curve.ranks, curve.nodes) != (cluster.world_size, hosts):
            per_node = curve.ranks * hosts == cluster.world_size * curve.nodes
            carried = per_node and (curve.nodes > 1) == (hosts > 1)
            warn(
                f"{curve}: the cluster has {cluster.world_size} ranks on {hosts} nodes, "
                + (
                    "whose predictions the curve moves and does not replace."
                    if carried
                    else "for which the curve does not count."
                )
            )
    columns = ("curve", "sizes B", "least us", "most busbw GB/s")
    print_table(columns, rows, right=columns[1:])
    out.print("[dim]Written as they were measured; nothing was run.[/]")
