"""`autosync cluster calibrate`: a cluster file with the collectives that logs measured."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import out, print_table, say, warn
from autosync.api.cli.options import ClusterName, RequiredOutput
from autosync.api.cli.output_files import check_writable
from autosync.cluster.collective_curve import CollectiveOperation

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
    from autosync.api.cli.domain_arguments import load_named_cluster, read_bytes
    from autosync.api.http.collective_tables import calibrated
    from autosync.cluster.cluster_file import save_cluster
    from autosync.interop.nccl_tests import Stated, read_nccl_tests

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
    found = calibrated(at, sweeps)
    save_cluster(found.cluster, output)
    for warning in (*found.warnings, *filter(None, (each.warning for each in found.curves))):
        warn(escape(warning))
    rows = [
        (
            each.curve,
            f"{each.least_bytes:.0f} to {each.most_bytes:.0f}",
            f"{each.least_seconds * 1e6:.1f}",
            f"{each.most_busbw_gbytes_per_second:.1f}",
        )
        for each in found.curves
    ]
    columns = ("curve", "sizes B", "least us", "most busbw GB/s")
    print_table(columns, rows, right=columns[1:])
    out.print("[dim]Written as they were measured; nothing was run.[/]")
    say(f"written to {escape(str(output))}: give it as CLUSTER")
