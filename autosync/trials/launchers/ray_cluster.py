"""Joining a Ray cluster that already runs, and its nodes as a cluster file names them."""

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from autosync.cluster import Cluster
from autosync.errors import InvalidInput, NotSupported

CONNECT_SECONDS = 10.0


def ray_addresses(cluster: Cluster, alive: Mapping[str, str]) -> list[str]:
    """Ray's address of each of the cluster's nodes.

    alive: Ray's nodes by address and by host name.

    Raises:
        InvalidInput: names the node that is none of them, or the two that are one.
    """
    found: dict[str, str] = {}
    for node in cluster.nodes:
        if node.address not in alive:
            raise InvalidInput(
                f"node {node.address!r} is not in the Ray cluster.",
                thing="address",
                value=node.address,
                remedy=f"Ray has: {', '.join(sorted(set(alive.values())))}.",
            )
        there = alive[node.address]
        if there in found:
            raise InvalidInput(
                f"nodes {found[there]!r} and {node.address!r} are the same Ray node, {there}.",
                thing="address",
                value=node.address,
                remedy="Name every host once.",
            )
        found[there] = node.address
    return list(found)


def connect_to_ray(address: str) -> bool:
    """Whether this call made the connection (and so shall end it).

    Raises:
        NotSupported: Ray is not installed, not reachable, or runs without a token.
    """
    try:
        import ray
    except ImportError:
        raise NotSupported(
            "Ray is not installed.",
            thing="launcher",
            value="ray",
            remedy="Install it: `pip install autosync[ray]`.",
        ) from None
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise NotSupported(
            f"RAY_AUTH_MODE is {os.environ.get('RAY_AUTH_MODE', 'not set')!r}: without a token, "
            "everyone who reaches Ray's ports can run code on its nodes.",
            thing="RAY_AUTH_MODE",
            value=os.environ.get("RAY_AUTH_MODE"),
            remedy="Set RAY_AUTH_MODE=token here and where Ray starts, with one token "
            "(`ray get-auth-token --generate` makes it).",
        )
    if ray.is_initialized():
        return False
    refuse_unreachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with _sigterm_kept():
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises anything from ConnectionError to ValueError here
        raise NotSupported(
            f"the Ray cluster at {address!r} cannot be joined: {error}",
            thing="address",
            value=address,
            remedy="Ray's programs run on nodes of its cluster: see that Ray runs on this machine "
            "(`ray start --address=HOST:PORT`), and that the token here is the head's "
            "(~/.ray/auth_token, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN).",
        ) from None
    return True


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray puts a handler of its own in the place of this process's, which leaves at once: a worker
    would not give back what it runs."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def refuse_unreachable(address: str) -> None:
    """Raises NotSupported where nothing listens at `HOST:PORT`; other forms of an address are Ray's
    to judge. Ray itself tries for two minutes, and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise NotSupported(
            f"the Ray cluster at {address!r} cannot be reached: "
            f"{getattr(error, 'strerror', None) or error}.",
            thing="address",
            value=address,
            remedy="Give HOST:PORT of the head, as `ray start --head` printed it (the port is 6379 "
            "unless it was chosen), and see that it runs and that no firewall is between.",
        ) from None


def disconnect_from_ray(connected: bool) -> None:
    import ray

    if connected:
        ray.shutdown()


def ray_nodes(address: str) -> list[dict[str, Any]]:
    """What Ray tells of the nodes of the cluster at `address`.

    Raises:
        NotSupported: as `connect_to_ray`.
    """
    connected = connect_to_ray(address)
    try:
        import ray

        found: list[dict[str, Any]] = ray.nodes()
        return found
    finally:
        disconnect_from_ray(connected)


def alive_nodes() -> dict[str, str]:
    """Ray's address of every node that is alive, by address and by host name where that tells
    them apart."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    names = [node["NodeManagerHostname"] for node in nodes]
    by_name = {
        name: str(node["NodeManagerAddress"])
        for name, node in zip(names, nodes, strict=True)
        if names.count(name) == 1
    }
    return by_name | {str(node["NodeManagerAddress"]): node["NodeManagerAddress"] for node in nodes}


def gpus_of_nodes() -> dict[str, float]:
    """How many GPUs each node that is alive has, by Ray's address."""
    import ray

    return {
        str(node["NodeManagerAddress"]): float(node["Resources"].get("GPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    }
