"""`autosync clusters`: the bundled clusters."""

from typing import Annotated

import typer

from autosync.api.cli.console import print_json, print_table
from autosync.api.cli.options import Json


def clusters(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[CLUSTER]", help="Show this one as a file to start from."),
    ] = None,
    json: Json = False,
) -> None:
    """List the bundled clusters, or print one as the YAML file to start your own from.

    Example: `autosync clusters example-4x1 > my-cluster.yaml`
    """
    from autosync.api.cli.argument_loading import load_named_cluster
    from autosync.cluster_file import bundled_clusters
    from autosync.documents import to_data

    if name is not None:
        _show(name, json)
        return
    loaded = [load_named_cluster(each) for each in bundled_clusters()]
    if json:
        print_json([to_data(cluster) for cluster in loaded])
        return
    rows = [
        (c.name, c.description, str(len(c.nodes)), str(c.world_size), c.backend) for c in loaded
    ]
    columns = ("name", "cluster", "nodes", "ranks", "backend")
    print_table(columns, rows, right=("nodes", "ranks"))


def _show(name: str, json: bool) -> None:
    import sys

    import yaml

    from autosync.api.cli.argument_loading import load_named_cluster
    from autosync.documents import to_data

    data = to_data(load_named_cluster(name))
    if json:
        print_json(data)
    else:
        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
