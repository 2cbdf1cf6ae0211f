"""Measures TCP payload between two network namespaces. Run as a script, by path: it imports
nothing but the standard library, so that a node's probe starts in milliseconds.

Commands, JSON lines on stdin: {"op": "listen", "address"} -> {"port"};
{"op": "pair", "dial", "address", "port", "seconds", "skip"} -> {"bytes_per_second",
"latency_seconds"}. Both ends of a pair send and receive at once, as an all-reduce does.
"""

import json
import socket
import sys
import threading
import time

CHUNK_BYTES = 128 * 1024
ROUND_TRIPS = 15


def main() -> None:
    listener: socket.socket | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "listen":
            listener = socket.create_server((command["address"], 0))
            answer = {"port": listener.getsockname()[1]}
        else:
            answer = measure(command, listener)
        print(json.dumps(answer), flush=True)


def measure(command: dict[str, object], listener: "socket.socket | None") -> dict[str, float]:
    """One connection's duplex payload rate (received here) and one-way latency."""
    if command["dial"]:
        connection = socket.create_connection((str(command["address"]), int(str(command["port"]))))
    else:
        if listener is None:
            raise RuntimeError("pair before listen")
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        latency = _latency(connection, bool(command["dial"]))
        seconds, skip = float(str(command["seconds"])), float(str(command["skip"]))
        sender = threading.Thread(target=_send, args=(connection, seconds))
        sender.start()
        rate = _receive(connection, skip)
        sender.join()
    return {"bytes_per_second": rate, "latency_seconds": latency}


def _latency(connection: socket.socket, first: bool) -> float:
    trips = []
    for _ in range(ROUND_TRIPS):
        begun = time.monotonic()
        if first:
            connection.sendall(b"x")
        connection.recv(1)
        if not first:
            connection.sendall(b"x")
        trips.append(time.monotonic() - begun)
    return sorted(trips)[len(trips) // 2] / 2


def _send(connection: socket.socket, seconds: float) -> None:
    chunk = bytes(CHUNK_BYTES)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(chunk)
    connection.shutdown(socket.SHUT_WR)


def _receive(connection: socket.socket, skip: float) -> float:
    """Bytes a second between the first arrival after `skip` seconds and the last."""
    buffer = bytearray(2 * CHUNK_BYTES)
    begun = time.monotonic()
    first = last = 0.0
    count = 0
    while received := connection.recv_into(buffer):
        now = time.monotonic()
        if first:
            count += received
            last = now
        elif now - begun >= skip:
            first = now
    return count / (last - first) if last > first else 0.0


if __name__ == "__main__":
    main()
