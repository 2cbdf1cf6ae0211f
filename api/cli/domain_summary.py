"""A domain in two lines, with what is estimated marked as such."""

from typing import TYPE_CHECKING

from autosync.api.cli.console import milliseconds, say, warn

if TYPE_CHECKING:
    from autosync.domain import Domain


def describe_domain(domain: "Domain") -> None:
    """What will be ranked or tuned, on stderr."""
    graph, cluster, profile = domain.graph, domain.cluster, domain.profile
    kinds = dict.fromkeys(device.type for device in cluster.device_of_rank())
    rates = sorted({node.bandwidth_gbps for node in cluster.nodes})
    between = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
    say(
        f"[bold]{graph.name}[/], batch {graph.batch_size} a replica, {len(graph.variables)} "
        f"variables, {graph.size_bytes / 1e6:.0f} MB, trained with {domain.optimizer.name}, on "
        f"[bold]{cluster.name}[/]: "
        f"{len(cluster.nodes)} nodes, {cluster.world_size} x {', '.join(kinds)}, "
        f"{between} Gbit/s a NIC"
    )
    mark = "an [bold yellow]estimate[/]" if domain.compute_source == "estimated" else "measured"
    note = profile.note
    if profile.device not in kinds:
        note += f", from {profile.device} by published peaks"
    say(f"Compute {milliseconds(domain.compute_seconds)} ms a step: {mark} ({note})")


def warn_of_memory(domain: "Domain", ddp_peak_bytes: float) -> None:
    """Say so where DDP itself does not fit; what else does not fit is not proposed."""
    from autosync.simulator.memory.peak_memory import device_memory_bytes

    least = float(device_memory_bytes(domain).min())
    if ddp_peak_bytes > least:
        warn(
            f"DDP does not fit: it needs {ddp_peak_bytes / 1e9:.2f} GB on a rank, and the smallest "
            f"device has {least / 1e9:.2f} GB (predicted). Strategies that do not fit are left out."
        )
