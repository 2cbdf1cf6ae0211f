"""`autosync clusters`: the bundled clusters."""

from typing import TYPE_CHECKING, Annotated

import typer

from autosync.api.cli.completion import complete_cluster, complete_device
from autosync.api.cli.console import out, print_json, print_table
from autosync.api.cli.options import Json

if TYPE_CHECKING:
    from autosync.cluster import Cluster

COLUMNS = ("name", "cluster", "nodes", "ranks", "GB a rank", "$ an hour")
GROUPS = {
    "example-": "To try (gloo)",
    "rtx-2080-ti-": "Published measurements, rates fitted to them (DeAR's testbed among them)",
    "aws-": "AWS",
    "azure-": "Azure",
    "gcp-": "Google Cloud",
    "": "Testbeds of papers",
}
"""By how a preset's name begins; AutoSync's testbeds on AWS stand there."""


def clusters(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLUSTER]",
            help="Show this one as a file to start from.",
            autocompletion=complete_cluster,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="List those that have this device type.", autocompletion=complete_device),
    ] = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="List those of so many ranks.")] = None,
    find: Annotated[
        str | None, typer.Option(metavar="TEXT", help="List those whose name or text has TEXT.")
    ] = None,
    json: Json = False,
) -> None:
    """List the bundled clusters, or print one as the YAML file to start your own from.

    Options choose among them. Hosts that a scheduler lists: `autosync import-cluster`.

    Examples:

        autosync clusters --find autosync
        autosync clusters --device h100 --ranks 32
        autosync clusters example-4x1 > my-cluster.yaml
    """
    from autosync.api.cli.domain_arguments import load_named_cluster
    from autosync.cluster.cluster_file import bundled_clusters
    from autosync.documents import to_data

    if name is not None:
        from autosync.api.engine.request_checks import refuse_given

        refuse_given(
            {"--device": device, "--ranks": ranks, "--find": find},
            "on a cluster that is named",
            "Leave it out, or leave out the name to list clusters.",
        )
        _show(name, json)
        return
    _check_device(device)
    loaded = [load_named_cluster(each) for each in bundled_clusters()]
    chosen = [c for c in loaded if _matches(c, device, ranks, find)]
    if json:
        print_json([to_data(cluster) for cluster in chosen])
        return
    if not chosen:
        out.print("no bundled cluster is like that: `autosync clusters` lists all")
    left = chosen
    for prefix, title in GROUPS.items():
        group = [c for c in left if c.name.startswith(prefix)]
        left = [c for c in left if c not in group]
        if group:
            out.print(f"\n[bold]{title}[/]")
            print_table(COLUMNS, [_row(c) for c in group], right=COLUMNS[2:])
    days = sorted({c.priced_on for c in chosen if c.priced_on})
    if days:
        out.print(f"\n[dim]Prices are public ones on demand, of {', '.join(days)}.[/]")


def _matches(cluster: "Cluster", device: str | None, ranks: int | None, find: str | None) -> bool:
    types = {each.type for each in cluster.device_of_rank()}
    words = f"{cluster.name} {cluster.description}".lower()
    return (
        (device is None or device in types)
        and (ranks is None or cluster.world_size == ranks)
        and (find is None or find.lower() in words)
    )


def _check_device(device: str | None) -> None:
    from autosync.api.cli.domain_arguments import unknown_name
    from autosync.cluster.devices import DEVICE_TYPES

    if device is not None and device not in DEVICE_TYPES:
        raise unknown_name("device type", device, list(DEVICE_TYPES), "Name one of these.")


def _row(cluster: "Cluster") -> tuple[str, ...]:
    memory = sorted({each.memory_bytes / 1e9 for each in cluster.device_of_rank()})
    price = cluster.usd_per_hour
    return (
        cluster.name,
        cluster.description,
        str(len(cluster.nodes)),
        str(cluster.world_size),
        " to ".join(f"{gigabytes:g}" for gigabytes in dict.fromkeys((memory[0], memory[-1]))),
        "" if price is None else f"{price:.2f}",
    )


def _show(name: str, json: bool) -> None:
    import sys

    import yaml

    from autosync.api.cli.domain_arguments import load_named_cluster
    from autosync.documents import to_data

    data = to_data(load_named_cluster(name))
    if json:
        print_json(data)
    else:
        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
