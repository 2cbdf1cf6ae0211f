"""`autosync import-cluster`: a cluster file from what lists the hosts already."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from autosync.api.cli.console import say
from autosync.api.cli.options import Output
from autosync.api.cli.output_files import check_writable

if TYPE_CHECKING:
    from autosync.cluster import Cluster
    from autosync.interop.gpu_topology import GpuTopology
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
        str | None, typer.Option(help="Type of the devices (v100, a100, h100, cpu, ...).")
    ] = None,
    port_gbps: Annotated[
        float | None, typer.Option(help="Rate of a network port on the wire, in Gbit/s.")
    ] = None,
    nics: Annotated[
        int | None, typer.Option(min=1, help="Such ports a host.", show_default="1, or as TOPO")
    ] = None,
    per_host: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Devices a host, where nothing says it.")
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
    latency_us: Annotated[float, typer.Option(help="One way between two hosts.")] = 50.0,
    name: Annotated[str, typer.Option(help="Of the cluster.")] = "imported",
) -> None:
    """Write a cluster file from a hostfile, Slurm, a running Ray cluster or AutoDist.

    What a list of hosts does not say (type of the devices, rates) is asked for. Rates are
    estimates until `autosync probe` has measured them.

    Examples:

        autosync import-cluster hostfile hosts.txt --device a100 --port-gbps 200 --topo topo.txt
        autosync import-cluster slurm 'gpu[01-04]' --per-host 1 --device t4 --port-gbps 25
        autosync import-cluster ray 10.0.0.1:6379 --port-gbps 25 --intra-gbps 48 -o ray.yaml
        autosync import-cluster autodist resource_spec.yml --device v100 --intra-gbps 900
    """
    from autosync.cluster_file import save_cluster
    from autosync.documents import to_data

    if output is not None:
        check_writable(output)
    seen = _topology(topo)
    if seen is not None and device is not None and intra_gbps is None and seen.gpus > 1:
        intra_gbps = _between(seen, device)
    if kind == "autodist":
        cluster = _of_autodist(Path(_needed(source)), device, intra_gbps, latency_us, name)
    else:
        from autosync.interop.host_clusters import HostHardware, cluster_of_hosts

        where = _where(kind, source)
        hardware = HostHardware(
            port_gbps=_stated_port(port_gbps),
            device_type=device,
            slots=per_host or (seen.gpus if seen else None),
            intra_bandwidth_gbps=intra_gbps,
            latency_us=latency_us,
            nics=nics or (seen.nics if seen else 0) or 1,
        )
        cluster = cluster_of_hosts(_hosts(kind, source), hardware, where, name)
    if output is not None:
        save_cluster(cluster, output)
        say(f"[dim]written to {output}: {len(cluster.nodes)} nodes, {cluster.world_size} ranks[/]")
        return
    import yaml

    sys.stdout.write(yaml.safe_dump(to_data(cluster), sort_keys=False, allow_unicode=True))


def _topology(path: Path | None) -> "GpuTopology | None":
    from autosync.interop.gpu_topology import read_topology

    return None if path is None else read_topology(_text(path), str(path))


def _between(topology: "GpuTopology", device: str) -> float:
    from autosync.devices import device_type_of_gpu

    return topology.intra_bandwidth_gbps(device_type_of_gpu(device, device))


def _hosts(kind: Kind, source: str | None) -> "tuple[Host, ...]":
    from autosync.interop.host_list import Host, expand_counts, expand_nodelist, read_hostfile

    if kind == "hostfile":
        path = Path(_needed(source))
        return read_hostfile(_text(path), str(path))
    if kind == "ray":
        from autosync.interop.host_clusters import hosts_of_ray
        from autosync.trials.launchers.ray_cluster import ray_nodes

        return hosts_of_ray(ray_nodes(_needed(source)))
    addresses = expand_nodelist(_needed(source or os.environ.get("SLURM_JOB_NODELIST")))
    counts = os.environ.get("SLURM_TASKS_PER_NODE") if source is None else None
    slots = expand_counts(counts) if counts else (None,) * len(addresses)
    if len(slots) != len(addresses):
        raise _refused(
            "SLURM_TASKS_PER_NODE",
            f"counts {len(slots)} hosts, SLURM_JOB_NODELIST {len(addresses)}",
            "Give the node list and --per-host.",
        )
    return tuple(Host(address, count) for address, count in zip(addresses, slots, strict=True))


def _of_autodist(
    path: Path, device: str | None, intra_gbps: float | None, latency_us: float, name: str
) -> "Cluster":
    from autosync.interop.resource_spec import Hardware, read_resource_spec

    hardware = Hardware(device, intra_gbps, latency_us)
    return read_resource_spec(_text(path), str(path), hardware, name).cluster


def _text(path: Path) -> str:
    """Of a small file; more than that is not read."""
    from autosync.api.cli.arguments.document_arguments import read_bytes
    from autosync.cluster_file import MAX_BYTES

    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise _refused(str(path), f"is larger than {MAX_BYTES // 1000} kB", "Give another file.")
    try:
        return read_bytes(path, "file").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"is not UTF-8 text (byte {error.start})"
        raise _refused(str(path), where, "Give a text file.") from None


def _where(kind: Kind, source: str | None) -> str:
    words = {"hostfile": f"hostfile {source}", "ray": f"Ray at {source}"}
    return words.get(kind, "a node list of Slurm's")


def _stated_port(port_gbps: float | None) -> float:
    if port_gbps is None:
        raise _refused(
            "--port-gbps", "is not given", "State the ports' rate in Gbit/s: 100 for 100 Gbit."
        )
    return port_gbps


def _needed(source: str | None) -> str:
    if not source:
        raise _refused("SOURCE", "is not given", "Name the file, node list or address.")
    return source


def _refused(where: str, why: str, remedy: str) -> Exception:
    from autosync.errors import InvalidInput

    return InvalidInput(f"{where} {why}.", thing=where, value=why, remedy=remedy)
