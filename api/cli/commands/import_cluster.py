"""`autosync import-cluster`: a cluster file from what lists the hosts already."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from autosync.api.cli.completion import complete_device
from autosync.api.cli.console import say, warn
from autosync.api.cli.options import Output
from autosync.api.cli.output_files import check_writable
from autosync.cluster.link_rates import StatedTransport

if TYPE_CHECKING:
    from autosync.interop.gpu_topology import GpuTopology
    from autosync.interop.host_clusters import HostHardware
    from autosync.interop.host_list import Host

Kind = Literal["hostfile", "slurm", "ray", "autodist"]


def import_cluster(
    kind: Annotated[
        Kind, typer.Argument(metavar="KIND", help="What lists the hosts.", show_default=False)
    ],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SOURCE]",
            help="The file; for slurm a node list such as gpu[01-04] (by default "
            "SLURM_JOB_NODELIST); for ray the head's HOST:PORT.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Type of the devices (v100, a100, h100, cpu, ...).",
            autocompletion=complete_device,
        ),
    ] = None,
    port_gbps: Annotated[
        float | None, typer.Option(help="Rate of a network port on the wire, in Gbit/s.")
    ] = None,
    nics: Annotated[
        int | None, typer.Option(min=1, help="Such ports a host.", show_default="1, or as TOPO")
    ] = None,
    per_host: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Devices a host, also where the list says otherwise."),
    ] = None,
    intra_gbps: Annotated[
        float | None, typer.Option(help="Payload rate between a host's devices, in Gbit/s.")
    ] = None,
    topo: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What `nvidia-smi topo -m` printed on one of the hosts: GPUs, ports, and an "
            "estimate of the rate between GPUs.",
        ),
    ] = None,
    transport: Annotated[
        StatedTransport | None,
        typer.Option(help="What messages between hosts use.", show_default="tcp, and says so"),
    ] = None,
    latency_us: Annotated[
        float | None,
        typer.Option(
            min=0, help="One way between two hosts.", show_default="the transport's usual one"
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the cluster.")] = "imported",
) -> None:
    """Write a cluster file from a hostfile, Slurm, a running Ray cluster or AutoDist.

    What a list of hosts does not say (type of the devices, rates) is asked for. Options are used
    also where the list says something else; a note tells what was not used. Rates are estimates,
    which `autosync probe` takes as they are: correct them in the file where you have measured them.

    Examples:

        autosync import-cluster hostfile hosts.txt --device a100 --port-gbps 200 --topo topo.txt \\
            --transport infiniband
        autosync import-cluster slurm 'gpu[01-04]' --per-host 1 --device t4 --port-gbps 25
        autosync import-cluster ray 10.0.0.1:6379 --port-gbps 25 --intra-gbps 48 -o ray.yaml
        autosync import-cluster autodist resource_spec.yml --device v100 --intra-gbps 900 \\
            --port-gbps 25
    """
    from autosync.cluster.cluster_file import save_cluster
    from autosync.documents import to_data
    from autosync.interop.host_clusters import HostHardware, cluster_of_hosts, notes_on_hosts

    if output is not None:
        check_writable(output)
    hardware = HostHardware(
        port_gbps, device, per_host, intra_gbps, latency_us, nics, transport, _topology(topo)
    )
    hosts, notes = _hosts(kind, source, hardware)
    cluster = cluster_of_hosts(hosts, hardware, _where(kind, source), name)
    for note in (*notes, *notes_on_hosts(hosts, hardware)):
        warn(f"{escape(note)}.")
    if output is not None:
        save_cluster(cluster, output)
        size = f"{len(cluster.nodes)} nodes, {cluster.world_size} ranks"
        say(f"[dim]written to {escape(str(output))}: {size}[/]")
        return
    import yaml

    sys.stdout.write(yaml.safe_dump(to_data(cluster), sort_keys=False, allow_unicode=True))


def _topology(path: Path | None) -> "GpuTopology | None":
    from autosync.interop.gpu_topology import read_topology

    return None if path is None else read_topology(_text(path), str(path))


def _hosts(
    kind: Kind, source: str | None, hardware: "HostHardware"
) -> "tuple[tuple[Host, ...], tuple[str, ...]]":
    """The listed hosts, and what of the list was left out, a sentence each."""
    from autosync.interop.host_list import read_hostfile

    if kind == "hostfile":
        path = Path(_needed(source))
        return read_hostfile(_text(path), str(path))
    if kind == "ray":
        from autosync.interop.host_clusters import hosts_of_ray
        from autosync.trials.launchers.ray_cluster import ray_nodes

        return hosts_of_ray(ray_nodes(_needed(source))), ()
    if kind == "autodist":
        from autosync.interop.resource_spec import hosts_of_spec

        path = Path(_needed(source))
        return hosts_of_spec(_text(path), str(path)), ()
    return _slurm_hosts(source, hardware)


def _slurm_hosts(
    source: str | None, hardware: "HostHardware"
) -> "tuple[tuple[Host, ...], tuple[str, ...]]":
    """The job's hosts. Its tasks a host are no devices where torchrun starts the ranks: options
    that state the devices are used instead."""
    from autosync.interop.host_list import Host, expand_counts, expand_nodelist

    addresses = expand_nodelist(_needed(source or os.environ.get("SLURM_JOB_NODELIST")))
    tasks = os.environ.get("SLURM_TASKS_PER_NODE") if source is None else None
    if not tasks:
        return tuple(Host(address) for address in addresses), ()
    stated = hardware.slots or (hardware.topology.gpus if hardware.topology else None)
    if stated is not None:
        hosts = tuple(Host(address) for address in addresses)
        if {each.partition("(")[0] for each in tasks.split(",")} == {str(stated)}:
            return hosts, ()
        by = "--per-host" if hardware.slots else "--topo"
        return hosts, (
            f"{by} states {stated} devices a host, SLURM_TASKS_PER_NODE={tasks} is not used",
        )
    slots = expand_counts(tasks)
    if len(slots) != len(addresses):
        raise _refused(
            "SLURM_TASKS_PER_NODE",
            f"counts {len(slots)} hosts, SLURM_JOB_NODELIST {len(addresses)}",
            "Give the node list and --per-host.",
        )
    hosts = tuple(Host(address, count) for address, count in zip(addresses, slots, strict=True))
    if set(slots) != {1}:
        return hosts, ()
    return hosts, (
        f"SLURM_TASKS_PER_NODE={tasks} is taken as one rank a host; where torchrun starts more in "
        "a task, state --per-host",
    )


def _text(path: Path) -> str:
    """Of a small file; more than that is not read."""
    from autosync.api.cli.domain_arguments import read_bytes
    from autosync.cluster.cluster_file import MAX_BYTES

    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise _refused(str(path), f"is larger than {MAX_BYTES // 1000} kB", "Give another file.")
    try:
        return read_bytes(path, "file").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"is not UTF-8 text (byte {error.start})"
        raise _refused(str(path), where, "Give a text file.") from None


def _where(kind: Kind, source: str | None) -> str:
    words = {
        "hostfile": f"hostfile {source}",
        "ray": f"Ray at {source}",
        "autodist": f"resource specification {source}",
    }
    return words.get(kind, "a node list of Slurm's")


def _needed(source: str | None) -> str:
    if not source:
        raise _refused("SOURCE", "is not given", "Name the file, node list or address.")
    return source


def _refused(where: str, why: str, remedy: str) -> Exception:
    from autosync.errors import InvalidInput

    return InvalidInput(f"{where} {why}.", thing=where, value=why, remedy=remedy)
