"""`autosync probe`: what messages cost besides their bytes, measured."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import out, print_table, say
from autosync.api.cli.options import (
    ClusterName,
    Prefix,
    RayAddress,
    RequiredOutput,
    WorkerPython,
    number_or_fraction,
    set_up_launchers,
)
from autosync.api.cli.output_files import check_writable
from autosync.errors import NotSupported
from autosync.trials.request_names import LauncherName

if TYPE_CHECKING:
    from autosync.cluster import Cluster
    from autosync.simulator.fitting.iteration_costs import CostFit

Scale = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        parser=number_or_fraction,
        help="As in `autosync tune`.",
        show_default="by cluster",
    ),
]


def probe(
    cluster: ClusterName,
    output: RequiredOutput,
    launcher: Annotated[LauncherName, typer.Option(help="As in `autosync tune`.")] = "auto",
    byte_scale: Scale = None,
    time_scale: Scale = None,
    prefix: Prefix = None,
    python: WorkerPython = None,
    ray_address: RayAddress = None,
) -> None:
    """Measure startup and engine costs of each kind of message and write them into the cluster.

    Rankings then rest on measured costs instead of assumed ones, and `autosync collectives` on the
    measured times of collectives. Minutes; needs three ranks, and a cluster on gloo.

    Example: `autosync probe example-4x1 -o probed.yaml`
    """
    from autosync.api.cli.domain_arguments import ProfileChoice, load_domain
    from autosync.api.cli.tuning_report import print_scales, scale_words
    from autosync.api.engine.registry import launcher_named
    from autosync.api.engine.request_checks import check_scales
    from autosync.api.engine.tuning_request import usual_scales
    from autosync.cluster.cluster_file import save_cluster
    from autosync.search.cluster_probe import probe_costs
    from autosync.trials.contract import reporting_waits
    from autosync.trials.launchers.local_launcher import DESCRIPTION

    check_writable(output)
    set_up_launchers(prefix, python, ray_address)
    domain = load_domain("resnet50", cluster, None, ProfileChoice())  # the scales of a usual model
    machines, usual = domain.cluster, usual_scales(domain, launcher)
    _refuse_nccl(machines)
    scales = (
        usual[0] if byte_scale is None else byte_scale,
        usual[1] if time_scale is None else time_scale,
    )
    check_scales(*scales)
    where = reporting_waits(launcher_named(launcher), say)
    say(f"Probing {escape(machines.name)}. {scale_words(*scales)}: several minutes")
    found = probe_costs(where, machines, *scales, say=say)
    save_cluster(found.cluster, output)
    _print(found.cluster)
    _print_agreement(found)
    print_scales(DESCRIPTION if where.name == "local" else where.name, *scales)
    out.print(f"Written to [bold]{escape(str(output))}[/]: give it as CLUSTER.")


def _refuse_nccl(cluster: "Cluster") -> None:
    """Raises NotSupported where the cluster's backend is NCCL: what gloo's messages cost would take
    the place of the model of NCCL's collectives."""
    if cluster.backend == "nccl":
        raise NotSupported(
            f"cluster {cluster.name!r} is on NCCL, and a probe sends from host memory, by gloo.",
            thing="backend",
            value=cluster.backend,
            remedy="Read logs of nccl-tests into it: `autosync cluster calibrate`. In a running "
            "job autosync.tune times its messages.",
        )


def _print(cluster: "Cluster") -> None:
    rows = [
        (
            cost.kind.replace("_", "-"),
            f"{cost.startup_seconds * 1e6:.0f}",
            f"{cost.startup_seconds_per_worker * 1e6:.0f}",
            f"{cost.seconds_per_byte * 1e9:.3f}",
            f"{cost.host_seconds * 1e6:.0f}",
            "" if cost.residual is None else f"{cost.residual:.0%}",
        )
        for cost in cluster.costs
    ]
    columns = ("message", "startup us", "us a worker", "ns a byte", "host us", "residual")
    print_table(columns, rows, right=columns[1:])


def _print_agreement(found: "CostFit") -> None:
    """How far the timeline is from the iterations that were measured."""
    if not len(found.measured):
        out.print("Whole iterations were not measured: unshaped links do not show this cluster.")
        return
    out.print(
        f"The timeline agrees with {len(found.measured)} measured iterations within "
        f"{found.residual:.1%} on average ({found.before:.1%} with the costs of single messages)."
    )
