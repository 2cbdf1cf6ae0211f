"""`autosync collectives`: what nccl-tests would print on a cluster."""

import re
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from autosync.api.cli.console import out, print_json, print_table, warn
from autosync.api.cli.options import ClusterName, Json
from autosync.collective_curve import CollectiveOperation
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from autosync.cluster import Cluster
    from autosync.simulator.backends.nccl import CollectiveTimes, Forced

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
"""As nccl-tests read sizes."""
USUAL_SIZES = tuple(8.0 * 2**place for place in range(28))
"""8 B to 1 GiB."""
LARGEST_BYTES = float(1 << 40)


class CollectiveRow(TypedDict):
    """Of one size of a message; between low_seconds and high_seconds nine of ten are expected."""

    size_bytes: float
    seconds: float
    low_seconds: float
    high_seconds: float
    algbw_gbytes_per_second: float
    busbw_gbytes_per_second: float
    algorithm: str
    protocol: str


def collectives(
    cluster: ClusterName,
    op: Annotated[CollectiveOperation, typer.Option(help="Which collective.")] = "all_reduce",
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
        typer.Option(min=1, help="So many such nodes.", show_default="as in the cluster file"),
    ] = None,
    algo: Annotated[
        str, typer.Option(help="Forced, as by NCCL_ALGO: Ring, Tree, NVLS, NVLSTree, PAT.")
    ] = "",
    proto: Annotated[str, typer.Option(help="Forced, as by NCCL_PROTO: LL, LL128, Simple.")] = "",
    channels: Annotated[
        int, typer.Option(min=0, help="At most so many, as by NCCL_MAX_NCHANNELS; 0: NCCL's own.")
    ] = 0,
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
    import numpy as np

    from autosync.api.cli.domain_arguments import load_named_cluster
    from autosync.cluster_sizes import cluster_of_nodes
    from autosync.simulator.backends.nccl import Forced
    from autosync.simulator.collective_predictions import predicted_collectives

    at = load_named_cluster(cluster)
    if nodes is not None:
        at = cluster_of_nodes(at, nodes)
    size_bytes = np.array(USUAL_SIZES if sizes is None else read_sizes(sizes))
    forced = Forced(algo, proto, channels)
    found = predicted_collectives(at, op, size_bytes, forced)
    for warning in _warnings(at, op, forced):
        warn(warning)
    rows = _rows(at, op, size_bytes, found)
    if json:
        print_json(rows)
        return
    shown = [
        (
            f"{row['size_bytes']:.0f}",
            f"{row['seconds'] * 1e6:.1f}",
            f"{row['low_seconds'] * 1e6:.1f} to {row['high_seconds'] * 1e6:.1f}",
            f"{row['algbw_gbytes_per_second']:.2f}",
            f"{row['busbw_gbytes_per_second']:.2f}",
            row["algorithm"],
            row["protocol"],
        )
        for row in rows
    ]
    columns = ("size B", "time us", "between", "algbw GB/s", "busbw GB/s", "algorithm", "protocol")
    print_table(columns, shown, right=columns[:5])
    out.print(
        f"[dim]{op} of {at.world_size} ranks, {sum(node.ranks > 0 for node in at.nodes)} nodes, "
        f"{at.backend}. Predictions: nothing was run.[/]"
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
        if not 0 < size <= LARGEST_BYTES:
            raise InvalidInput(
                f"{word.strip()[:40]!r} is no size of a message.",
                thing="--sizes",
                value=word.strip()[:40],
                remedy="Write bytes, or 1K, 16M, 1G (powers of 1,024), up to 1024G.",
            )
        found.append(size)
    return tuple(found)


def _rows(
    cluster: "Cluster",
    op: CollectiveOperation,
    size_bytes: "NDArray[np.float64]",
    found: "CollectiveTimes",
) -> list[CollectiveRow]:
    from autosync.collective_curve import bus_share

    share = bus_share(op, cluster.world_size)
    return [
        {
            "size_bytes": float(size),
            "seconds": float(found.seconds[place]),
            "low_seconds": float(found.low_seconds[place]),
            "high_seconds": float(found.high_seconds[place]),
            "algbw_gbytes_per_second": float(size / found.seconds[place] / 1e9),
            "busbw_gbytes_per_second": float(share * size / found.seconds[place] / 1e9),
            "algorithm": found.algorithm[place],
            "protocol": found.protocol[place],
        }
        for place, size in enumerate(size_bytes.tolist())
    ]


def _warnings(cluster: "Cluster", op: CollectiveOperation, forced: "Forced") -> list[str]:
    """What the times rest on: the cluster file's own measurements, or classes without any."""
    from autosync.simulator.backends.nccl.measured_curves import curve_for
    from autosync.simulator.cost.class_constants import unmeasured_collectives
    from autosync.simulator.cost.collective_costs import has_collective_model
    from autosync.simulator.topology import topology_of

    topology = topology_of(cluster)
    curve = None if forced.channels else curve_for(topology, op, forced.algorithm, forced.protocol)
    if curve is not None and curve.nodes == topology.nodes:
        return [f"times follow what the cluster file holds as measured: {curve}."]
    modelled = has_collective_model(cluster)
    found = [f"{each}." for each in unmeasured_collectives(topology)] if modelled else []
    if curve is not None and modelled:
        found.append(f"times are moved by what the cluster file holds as measured: {curve}.")
    elif cluster.curves:
        found.append("no curve of the cluster file counts here: nothing measured is used.")
    return found
