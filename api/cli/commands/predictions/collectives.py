"""`autosync collectives`: what nccl-tests would print on a cluster."""

import re
from typing import Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import out, print_json, print_table, warn
from autosync.api.cli.options import ClusterName, Json
from autosync.api.prediction_spec import LARGEST_MESSAGE_BYTES, CollectivesSpec
from autosync.api.spec import checked
from autosync.cluster.collective_curve import CollectiveOperation
from autosync.errors import InvalidInput

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
"""As nccl-tests read sizes."""


def described(field: str) -> str:
    """Of an option, what the REST body says of its field."""
    return f"{CollectivesSpec.model_fields[field].description}"


def collectives(
    cluster: ClusterName,
    op: Annotated[CollectiveOperation, typer.Option(help=described("operation"))] = "all_reduce",
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES,...",
            help="Of the whole buffer, as nccl-tests count them: 1K, 16M, 1G (powers of 1,024).",
            show_default="8 to 1G, doubling",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help=described("nodes"), show_default="as in the cluster file"),
    ] = None,
    algo: Annotated[str, typer.Option(help=described("algorithm"))] = "",
    proto: Annotated[str, typer.Option(help=described("protocol"))] = "",
    channels: Annotated[int, typer.Option(min=0, help=described("channels"))] = 0,
    json: Json = False,
) -> None:
    """Predict what nccl-tests would print on a cluster: one row for each size of a message.

    Hold it against a log of yours; `autosync cluster calibrate` writes what the log says into the
    cluster file. Nine of ten measurements are expected within the interval. On gloo the table is
    that of its own collectives.

    Examples:

        autosync collectives aws-p5-48xlarge-x4
        autosync collectives aws-p5-48xlarge-x4 --op all_gather --sizes 1M,64M,1G --nodes 2
        autosync collectives gcp-a3-megagpu-8g-x4 --algo Ring --proto Simple --json
    """
    from autosync.api.cli.domain_arguments import load_named_cluster
    from autosync.api.http.collective_tables import collective_table

    sized = {} if sizes is None else {"sizes_bytes": read_sizes(sizes)}
    forced = {"algorithm": algo, "protocol": proto, "channels": channels}
    given = {"cluster": "", "operation": op, "nodes": nodes, **forced, **sized}
    asked = checked(CollectivesSpec, given)
    found = collective_table(load_named_cluster(cluster), asked)
    for warning in found.warnings:
        warn(escape(warning))
    if json:
        print_json([row.model_dump() for row in found.rows])
        return
    shown = [
        (
            f"{row.size_bytes:.0f}",
            f"{row.seconds * 1e6:.1f}",
            f"{row.low_seconds * 1e6:.1f} to {row.high_seconds * 1e6:.1f}",
            f"{row.algbw_gbytes_per_second:.2f}",
            f"{row.busbw_gbytes_per_second:.2f}",
            row.algorithm,
            row.protocol,
            row.binding,
        )
        for row in found.rows
    ]
    numbers = ("size B", "time us", "between", "algbw GB/s", "busbw GB/s")
    print_table((*numbers, "algorithm", "protocol", "bound by"), shown, right=numbers)
    out.print(
        f"[dim]{found.operation} of {found.ranks} ranks, {found.nodes} nodes, {found.backend}. "
        "Predictions: nothing was run.[/]"
    )


def read_sizes(text: str) -> tuple[float, ...]:
    """
    Raises:
        InvalidInput: names the size that is none.
    """
    found = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,12})([kmg]?)(?:i?b)?\s*", word.lower())
        size = float(match[1]) * UNITS[match[2]] if match else 0.0
        if not 0 < size <= LARGEST_MESSAGE_BYTES:
            raise InvalidInput(
                f"{word.strip()[:40]!r} is no size of a message.",
                thing="--sizes",
                value=word.strip()[:40],
                remedy="Write bytes, or 1K, 16M, 1G (powers of 1,024), up to 1024G.",
            )
        found.append(size)
    return tuple(found)
