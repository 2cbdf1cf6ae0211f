"""`autosync testbed`: an emulated cluster to look into."""

from typing import Annotated

import typer

from autosync.api.cli.console import out, print_json, print_table
from autosync.api.cli.options import ClusterName, Json

app = typer.Typer(
    name="testbed",
    no_args_is_help=True,
    help="Emulate a cluster on this machine: network namespaces with shaped links.\n\n"
    "Tunings build and remove their own; these commands are for looking into one by hand.",
)

TestbedId = Annotated[
    str, typer.Argument(metavar="ID", help="As `up` or `status` printed it.", show_default=False)
]


@app.command()
def up(
    cluster: ClusterName,
    byte_scale: Annotated[float, typer.Option(help="Links carry this share.")] = 1.0,
    time_scale: Annotated[float, typer.Option(help="Links are this many times slower.")] = 1.0,
) -> None:
    """Build the emulated cluster; it lives until `autosync testbed down`.

    Example: `autosync testbed up example-4x1 --byte-scale 0.0625 --time-scale 2`
    """
    from autosync.api.cli.arguments.domain_arguments import load_named_cluster
    from autosync.trials.testbed import namespaces

    made = namespaces.up(load_named_cluster(cluster), byte_scale, time_scale, lasting=True)
    out.print(f"[bold]{made.id}[/]: {len(made.addresses)} nodes, {', '.join(made.addresses)}")
    out.print(f"[dim]Try: autosync testbed exec {made.id} 0 -- ping -c 3 {made.addresses[-1]}[/]")


@app.command()
def down(testbed: TestbedId) -> None:
    """Remove an emulated cluster and everything that runs in it.

    Example: `autosync testbed down 1f3a5c07`
    """
    from autosync.trials.testbed import namespaces

    namespaces.down(namespaces.find(testbed))
    out.print(f"{testbed} is gone.")


@app.command()
def status(json: Json = False) -> None:
    """List the emulated clusters that live.

    Example: `autosync testbed status --json`
    """
    from dataclasses import asdict

    from autosync.trials.testbed import namespaces

    live = namespaces.status()
    if json:
        print_json([asdict(each) for each in live])
    elif not live:
        out.print("No testbed is up.")
    else:
        rows = [
            (
                each.id,
                each.cluster,
                str(len(each.addresses)),
                f"{each.byte_scale:g}",
                f"{each.time_scale:g}",
                "until down" if each.owner is None else f"process {each.owner[0]}",
            )
            for each in live
        ]
        columns = ("id", "cluster", "nodes", "byte scale", "time scale", "lives with")
        print_table(columns, rows, right=columns[2:5])


@app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    testbed: TestbedId,
    node: Annotated[int, typer.Argument(min=0, help="Its number, from 0.", show_default=False)],
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="With its arguments.", show_default=False),
    ],
) -> None:
    """Run a command on a node of an emulated cluster.

    Example: `autosync testbed exec 1f3a5c07 0 -- ip addr`
    """
    from autosync.errors import InvalidInput
    from autosync.trials.testbed import namespaces

    found = namespaces.find(testbed)
    if node >= len(found.addresses):
        raise InvalidInput(
            f"testbed {testbed} has {len(found.addresses)} nodes; there is no number {node}.",
            thing="node",
            value=node,
            remedy=f"Use 0 to {len(found.addresses) - 1}.",
        )
    raise typer.Exit(namespaces.run_inside(found, node, command))
