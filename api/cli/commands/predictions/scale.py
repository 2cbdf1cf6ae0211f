"""`autosync scale`: what a job reaches on more nodes, before one buys them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosync.api.cli.completion import complete_design
from autosync.api.cli.console import number_of_ms, out, print_json, print_table, warn
from autosync.api.cli.options import (
    DEFAULT_DATABASE,
    Accumulate,
    Batch,
    ClusterName,
    DatabaseUrl,
    DeviceType,
    Efficiency,
    Json,
    Model,
    Optimizer,
    ProfileFile,
    ServiceUrl,
    SimulatorName,
    StepSeconds,
)
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.api.client.rest_client import Client
    from autosync.domain import Domain
    from autosync.simulator.scaling import ScalePoint

MOST_COUNTS = 32


def scale(
    model: Model,
    cluster: ClusterName,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="N,...", help="Numbers of nodes; more than the file has repeat its node."
        ),
    ] = "1,2,4,8,16,32",
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A hand-designed strategy or a published method, as of `autosync predict`.",
            autocompletion=complete_design,
        ),
    ] = "ddp",
    batch: Batch = None,
    optimizer: Optimizer = None,
    step_seconds: StepSeconds = None,
    accumulate: Accumulate = 1,
    simulator: SimulatorName = "timeline",
    device: DeviceType = None,
    efficiency: Efficiency = None,
    profile: ProfileFile = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    url: ServiceUrl = None,
    json: Json = False,
) -> None:
    """Predict what a job reaches on 1, 2, 4, ... nodes: throughput, efficiency and what binds it.

    The batch of a replica stays, so that more nodes train on more samples a step. Where the cluster
    file states prices, samples a dollar stand beside. The knee is the number of nodes beyond which
    a further one brings less than half of what the first brought.

    Examples:

        autosync scale gpt2_medium aws-p5-48xlarge-x4
        autosync scale resnet50 aws-p3-16xlarge-x4 --nodes 1,4,16,64 --step-seconds 0.085 --json
    """
    from autosync.api.cli.connection import connected
    from autosync.api.cli.domain_arguments import ProfileChoice, describe_domain, load_domain
    from autosync.simulator.scaling import knee_of

    counts = read_counts(nodes)
    choice = ProfileChoice(profile, device, efficiency, step_seconds)
    domain = load_domain(model, cluster, batch, choice, optimizer)
    describe_domain(domain)
    options: dict[str, Any] = {
        "profile": domain.profile,
        "optimizer": domain.optimizer,
        "compute_is_known": step_seconds is not None,
        "simulator": simulator,
        "accumulate": accumulate,
    }
    with connected(db, url, temporary=True) as at:
        found = [_point(at.client, domain, count, strategy, options) for count in counts]
    points = [point for point, _ in found]
    for warning in dict.fromkeys(each for _, warnings in found for each in warnings):
        warn(warning)
    knee = knee_of(points)
    if json:
        print_json({"points": [_data(point) for point in points], "knee_nodes": knee})
        return
    _print(points, knee)


def read_counts(text: str) -> tuple[int, ...]:
    """
    Raises:
        InvalidInput: names what is no number of nodes.
    """
    found = set()
    for word in text.split(","):
        if not word.strip().isdecimal() or not 1 <= int(word) <= 16_384:
            raise InvalidInput(
                f"{word.strip()[:40]!r} is no number of nodes.",
                thing="--nodes",
                value=word.strip()[:40],
                remedy="Write numbers with commas between them: 1,2,4,8.",
            )
        found.add(int(word))
    if len(found) > MOST_COUNTS:
        raise InvalidInput(
            f"{len(found)} numbers of nodes are more than {MOST_COUNTS}.",
            thing="--nodes",
            value=len(found),
            remedy=f"Ask for {MOST_COUNTS} at most.",
        )
    return tuple(sorted(found))


def _point(
    client: "Client",
    domain: "Domain",
    nodes: int,
    strategy: str,
    options: dict[str, Any],
) -> "tuple[ScalePoint, list[str]]":
    """With what must be known of the prediction, a sentence each. options: of the prediction."""
    from autosync.cluster_sizes import cluster_of_nodes
    from autosync.simulator.scaling import ScalePoint

    workers = [node for node in domain.cluster.nodes if node.ranks]
    prices = [node.usd_per_hour for node in workers[:nodes]]
    computing = domain.compute_seconds * options["accumulate"]
    if nodes == 1 and workers[0].ranks == 1:  # no cluster: nothing is synchronized
        price = prices[0] or None
        alone = domain.batch_size / domain.compute_seconds
        return ScalePoint(1, 1, computing, computing, computing, alone, 1.0, "compute", price), []
    cluster = cluster_of_nodes(domain.cluster, nodes)
    found = client.predict(domain.graph, cluster, [strategy], **options).items[0]
    point = ScalePoint(
        nodes=nodes,
        ranks=cluster.world_size,
        step_seconds=found.predicted_seconds,
        low_seconds=found.low_seconds,
        high_seconds=found.high_seconds,
        samples_per_second=found.samples_per_second,
        efficiency=computing / found.predicted_seconds,
        binding=found.binding,
        usd_per_hour=cluster.usd_per_hour,
    )
    return point, found.warnings


def _data(point: "ScalePoint") -> dict[str, float | int | str | None]:
    from dataclasses import asdict

    return {**asdict(point), "samples_per_dollar": point.samples_per_dollar}


def _print(points: "list[ScalePoint]", knee: int | None) -> None:
    priced = any(point.samples_per_dollar for point in points)
    rows = [
        (
            str(point.nodes),
            str(point.ranks),
            number_of_ms(point.step_seconds),
            f"{number_of_ms(point.low_seconds)} to {number_of_ms(point.high_seconds)}",
            f"{point.samples_per_second:,.0f}",
            f"{point.efficiency:.0%}",
            point.binding,
            *((f"{point.samples_per_dollar or 0:,.0f}",) if priced else ()),
        )
        for point in points
    ]
    columns = ["nodes", "ranks", "predicted ms", "between", "samples/s", "efficiency", "bound by"]
    right = columns[:6]
    if priced:
        columns.append("samples/$")
        right = [*right, "samples/$"]
    print_table(columns, rows, right=right)
    if knee is None:
        out.print("Every further node brings at least half of what the first brought.")
    else:
        out.print(f"The knee: beyond [bold]{knee}[/] nodes a further one brings less than half.")
    out.print("[dim]Predictions: nothing was run.[/]")
