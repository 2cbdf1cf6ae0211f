"""`autosync submit`: a job for a cluster's scheduler that tunes on the hosts it is given."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.commands.import_cluster import import_cluster
from autosync.api.cli.commands.tune import tune
from autosync.api.cli.console import say
from autosync.api.cli.options import Model, ServiceUrl
from autosync.api.cli.output_files import write_text
from autosync.errors import InvalidInput, NotSupported

if TYPE_CHECKING:
    from autosync.interop.slurm_script import SlurmJob

USUAL_SCRIPT = Path("tune.sbatch")
WRONG_USAGE: type[Exception] = typer.BadParameter.__bases__[0]
"""The `UsageError` of the click that typer uses: its own copy, or the installed one."""

app = typer.Typer(
    name="submit",
    no_args_is_help=True,
    help="Write a job for a cluster's scheduler that tunes on the hosts it is given.",
)


@app.callback()
def submit_commands() -> None:
    """Write a job for a cluster's scheduler that tunes on the hosts it is given."""


@app.command()
def slurm(
    model: Model,
    cluster: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLUSTER]",
            help="A cluster file whose addresses are Slurm's names of hosts: the job gets these. "
            "Without it the job describes the hosts that it gets.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Hosts to ask for, without CLUSTER.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="OPTIONS",
            help="What one host has, without CLUSTER: options of `autosync import-cluster`, such "
            "as '--per-host 8 --device a100 --port-gbps 200 --intra-gbps 600'.",
        ),
    ] = None,
    options: Annotated[
        str,
        typer.Option(
            "--tune",
            metavar="OPTIONS",
            help="Options of `autosync tune`, such as '--budget 16 --compute kernels "
            "--compute-device cuda'.",
        ),
    ] = "",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="An option of sbatch, as --sbatch=--partition=gpu or --sbatch=--time=01:00:00; "
            "may be given several times.",
        ),
    ] = None,
    url: ServiceUrl = None,
    python: Annotated[
        str | None,
        typer.Option(
            help="Interpreter on the hosts, where autosync is installed.",
            show_default="this one's path",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the script goes.")
    ] = USUAL_SCRIPT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script; write nothing.")
    ] = False,
) -> None:
    """Write a batch script for Slurm, and say how to submit it.

    Within its allocation the job runs `autosync tune`, whose ranks `srun` starts, and leaves
    best.json in the folder from which it was submitted. With --url it runs a worker of the service
    there instead, for as long as tunings of launcher command wait in the service's queue;
    `autosync tune --url` starts one from anywhere. `autosync serve` then needs --prefix, to offer
    the launcher, and --workers 0, since workers of its own would take the tuning.

    Examples:

        autosync submit slurm resnet50 my-cluster.yaml --sbatch=--time=01:00:00
        autosync submit slurm resnet50 --nodes 2 \\
            --hardware='--per-host 8 --device a100 --port-gbps 200 --intra-gbps 600'
        autosync submit slurm resnet50 my-cluster.yaml --url http://tuner.example.com:8080
    """
    from autosync.interop.slurm_script import slurm_script

    _check_options("--tune", tune, ["MODEL", "CLUSTER"], options)
    python = python or sys.executable
    if cluster is not None and (nodes is not None or hardware is not None):
        raise InvalidInput(
            "CLUSTER names the hosts and what they have, so --nodes and --hardware have no effect.",
            thing="CLUSTER",
            value=cluster,
            remedy="Leave them out, or CLUSTER, so that the job describes the hosts that it gets.",
        )
    if cluster is not None:
        job = _on_known_hosts(model, cluster, options, url, python, tuple(sbatch or ()))
    elif url is not None:
        raise InvalidInput(
            "with --url somebody else starts the tuning, who must know its hosts: CLUSTER is "
            "missing.",
            thing="CLUSTER",
            remedy="Give a cluster file (`autosync import-cluster slurm` writes one), or leave "
            "--url out.",
        )
    else:
        job = _on_any_hosts(model, nodes, hardware, options, python, tuple(sbatch or ()))
    script = slurm_script(job)
    if dry_run:
        sys.stdout.write(script)
        return
    write_text(output, script)
    say(
        f"[dim]written to {escape(str(output))}: {job.nodes} hosts, {job.nodes} x "
        f"{job.ranks_per_host} ranks[/]"
    )
    if url is not None:
        words = ["autosync", "tune", model, str(cluster), "--url", url, *shlex.split(options)]
        say("\nStart the tuning, from anywhere, with:\n")
        say(f"    {escape(shlex.join([*words, '--launcher', 'command']))}")
        say("\nand, while it waits, the job with the worker that runs it:")
    say(f"\n    sbatch {escape(shlex.quote(str(output)))}\n")


def _on_known_hosts(
    model: str,
    cluster: str,
    options: str,
    url: str | None,
    python: str,
    sbatch: tuple[str, ...],
) -> "SlurmJob":
    from autosync.cluster.cluster_file import load_cluster
    from autosync.cluster.devices import DEVICE_TYPES
    from autosync.interop.slurm_script import PREFIX, SlurmJob
    from autosync.trials.launchers.command_launcher import refuse_unsafe_addresses

    loaded = load_cluster(cluster)
    refuse_unsafe_addresses(loaded)
    gpus = [
        sum(one.count for one in node.devices if DEVICE_TYPES[one.type].is_gpu)
        for node in loaded.nodes
    ]
    if min(gpus) < max(gpus):
        most, fewest = (loaded.nodes[gpus.index(count)].address for count in (max(gpus), min(gpus)))
        raise NotSupported(
            f"host {most!r} has {max(gpus)} GPUs and host {fewest!r} has {min(gpus)}: a job asks "
            "for equally many of every host.",
            thing="CLUSTER",
            value=cluster,
            remedy="Take hosts with equally many GPUs. Or run `autosync tune --launcher command "
            "--prefix 'ssh {host}'` yourself, where you may reach the hosts of your jobs by ssh.",
        )
    if url is None:
        command = _tuning(model, cluster, options, python)
    else:
        where = ("--launcher", "command", "--prefix", PREFIX, "--python", python)
        command = ("worker", "--url", url, "--once", *where)
    return SlurmJob(
        nodes=len(loaded.nodes),
        ranks_per_host=max(sum(device.count for device in node.devices) for node in loaded.nodes),
        on_gpus=any(gpus),
        python=python,
        commands=(command,),
        hosts=tuple(node.address for node in loaded.nodes),
        options=sbatch,
        needs_key=url is not None,
    )


def _on_any_hosts(
    model: str,
    nodes: int | None,
    hardware: str | None,
    options: str,
    python: str,
    sbatch: tuple[str, ...],
) -> "SlurmJob":
    from autosync.cluster.devices import DEVICE_TYPES
    from autosync.interop.slurm_script import HOSTS_FILE, SlurmJob

    if nodes is None or hardware is None:
        raise InvalidInput(
            "neither CLUSTER nor the hosts to ask for are given.",
            thing="CLUSTER",
            remedy="Give a cluster file, or --nodes and --hardware.",
        )
    stated = _check_options("--hardware", import_cluster, ["slurm"], hardware)
    device, per_host = str(stated.get("device") or ""), stated.get("per_host")
    if device not in DEVICE_TYPES or not isinstance(per_host, int):
        raise InvalidInput(
            "--hardware must say how many devices a host has, and which.",
            thing="--hardware",
            value=hardware,
            remedy="Give --per-host NUMBER and --device TYPE in it; types are "
            f"{', '.join(DEVICE_TYPES)}.",
        )
    described = ("import-cluster", "slurm", *shlex.split(hardware), "-o", HOSTS_FILE)
    return SlurmJob(
        nodes=nodes,
        ranks_per_host=per_host,
        on_gpus=DEVICE_TYPES[device].is_gpu,
        python=python,
        commands=(described, _tuning(model, HOSTS_FILE, options, python)),
        options=sbatch,
    )


def _tuning(model: str, cluster: str, options: str, python: str) -> tuple[str, ...]:
    from autosync.interop.slurm_script import PREFIX

    launcher = ("--launcher", "command", "--prefix", PREFIX, "--python", python)
    return ("tune", model, cluster, *shlex.split(options), *launcher)


def _check_options(
    option: str, command: Callable[..., None], arguments: list[str], words: str
) -> "dict[str, object]":
    """What the words state to the command, by its parameters.

    Raises:
        InvalidInput: the command has no such option, or another kind of value.
    """
    group = typer.Typer()
    group.command()(command)
    try:
        parser = typer.main.get_command(group)
        return dict(parser.make_context("", [*arguments, *shlex.split(words)]).params)
    except (WRONG_USAGE, ValueError) as error:
        told = getattr(error, "format_message", error.__str__)()
        raise InvalidInput(
            f"{option} {words!r} cannot be used: {told.rstrip('.')}.",
            thing=option,
            value=words,
            remedy="`autosync tune --help` and `autosync import-cluster --help` list the options.",
        ) from None
