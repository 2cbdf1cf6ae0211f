"""Measures TCP payload between two network namespaces. Run as a script, by path: it imports
nothing but the standard library, so that a node's probe starts in milliseconds.

Commands, JSON lines on stdin: {"op": "listen", "address"} -> {"port"};
{"op": "pair", "dial", "address", "port", "seconds", "skip", "slow"} -> {"bytes_per_second",
"latency_seconds"}: both ends of a pair send and receive at once, as an all-reduce does;
{"op": "ring", "address", "port", "rounds": [[piece_bytes, steps]]} -> {"ended", "arriving"}: in
every step each node sends a piece to the next node and receives one from the node before, which
is what an all-reduce in a ring is to the links; {"op": "within", "address", "port", "seconds",
"skip", "slow"} -> {"bytes_per_second"}: a node sends to itself.
"""

import contextlib
import json
import queue
import socket
import sys
import threading
import time
from statistics import median
from typing import Any

CHUNK_BYTES = 128 * 1024
ROUND_TRIPS = 15
SLOW_BUFFER_BYTES = 192 * 1024
"""Of the sender on a slow link: the kernel's own choice grows to 4 MB, which would go on arriving
when the measurement is over."""


def main() -> None:
    listener: socket.socket | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "listen":
            listener = socket.create_server((command["address"], 0))
            answer: dict[str, Any] = {"port": listener.getsockname()[1]}
        elif command["op"] == "ring":
            answer = run_ring(command, listener)
        else:
            answer = measure(command, listener)
        print(json.dumps(answer), flush=True)


def run_ring(command: dict[str, Any], listener: "socket.socket | None") -> dict[str, list[float]]:
    """Rounds of steps, one right after another. ended: when each round was over here, on the
    monotonic clock that all namespaces share. arriving: seconds between the first and the last
    byte of a piece, which are long where the link from the node before is slow; the median of a
    round's steps, since a busy processor holds up a few of them."""
    if listener is None:
        raise RuntimeError("ring before listen")
    onward = socket.create_connection((command["address"], command["port"]))
    before, _ = listener.accept()
    pieces: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    sender = threading.Thread(target=_send_pieces, args=(onward, pieces), daemon=True)
    sender.start()
    ended, arriving = [], []
    with onward, before:
        for piece_bytes, steps in command["rounds"]:
            piece, buffer = bytes(piece_bytes), memoryview(bytearray(piece_bytes))
            spent = []
            for _ in range(steps):
                pieces.put(piece)
                spent.append(_receive_piece(before, buffer))
            ended.append(time.monotonic())
            arriving.append(median(spent))
        pieces.put(b"")
        sender.join()
    return {"ended": ended, "arriving": arriving}


def _send_pieces(connection: socket.socket, pieces: "queue.SimpleQueue[bytes]") -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while piece := pieces.get():
        connection.sendall(piece)


def _receive_piece(connection: socket.socket, buffer: memoryview) -> float:
    """Fill the buffer; seconds between the first bytes and the last."""
    first, place = 0.0, 0
    while place < len(buffer):
        received = connection.recv_into(buffer[place:])
        if not received:
            raise ConnectionError("the node before has gone")
        first = first or time.monotonic()
        place += received
    return time.monotonic() - first


def measure(command: dict[str, Any], listener: "socket.socket | None") -> dict[str, float]:
    """The payload rate received here, and the one-way latency of a pair. Within a node all that
    its ranks send to each other passes one shaper, whichever way it goes: it sends one way only."""
    within = command["op"] == "within"
    if listener is None:
        raise RuntimeError(f"{command['op']} before listen")
    with contextlib.ExitStack() as opened:
        if command["dial"]:
            sending = socket.create_connection((command["address"], command["port"]))
        else:
            sending, _ = listener.accept()
        opened.enter_context(sending)
        receiving = opened.enter_context(listener.accept()[0]) if within else sending
        sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if command["slow"]:
            sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SLOW_BUFFER_BYTES)
        found = {} if within else {"latency_seconds": _latency(sending, command["dial"])}
        return found | {"bytes_per_second": _carried(sending, receiving, command)}


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


def _carried(sending: socket.socket, receiving: socket.socket, command: dict[str, Any]) -> float:
    """Send for a while; bytes a second of what is received meanwhile."""
    sender = threading.Thread(target=_send, args=(sending, command["seconds"]))
    sender.start()
    rate = _receive(receiving, command["skip"])
    sender.join()
    return rate


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
