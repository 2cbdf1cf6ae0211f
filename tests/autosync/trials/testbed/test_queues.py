"""Small messages beside bulk on real shaped links: no queue of the testbed's own holds them up."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from autosync.trials.testbed import namespaces
from autosync.trials.testbed.link_shaping import QUEUE_SECONDS
from autosync.trials.testbed.namespaces import Testbed
from autosync.trials.testbed.self_check import check_testbed
from tests.domains import grid_cluster

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("testbed_possible")]

SINK = """
import socket, threading
server = socket.create_server(("", 7000))
print("ready", flush=True)

def serve(connection):
    kind = connection.recv(1)
    while data := connection.recv(1 << 16):
        if kind == b"e":
            connection.sendall(data)

while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
"""Swallows what comes on a connection that begins with `b`, and returns what comes after an `e`."""

BULK = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000))
connection.sendall(b"b")
print("ready", flush=True)
while True:
    connection.sendall(bytes(1 << 20))
"""

TRIPS = """
import socket, statistics, sys, time
connection = socket.create_connection((sys.argv[1], 7000))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
connection.sendall(b"e")
spent = []
time.sleep(1.0)
for _ in range(25):
    begun = time.monotonic()
    connection.sendall(b"x")
    connection.recv(1)
    spent.append(time.monotonic() - begun)
print(statistics.median(spent))
"""


@dataclass(frozen=True)
class Running:
    """A testbed of three nodes, and how to run a script of this file on one of them."""

    testbed: Testbed
    started: "list[subprocess.Popen[str]]"

    def run(self, node: int, script: str, *to: int) -> "subprocess.Popen[str]":
        addresses = [self.testbed.addresses[one] for one in to]
        command = [*self.testbed.prefix(node), sys.executable, "-c", script, *addresses]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def run_until_ready(self, node: int, script: str, *to: int) -> None:
        output = self.run(node, script, *to).stdout
        assert output is not None
        assert output.readline() == "ready\n"


@pytest.fixture
def running() -> Iterator[Running]:
    testbed = namespaces.up(grid_cluster(3, 1, (0.1, 0.1, 0.1)), 1.0, 2.0)
    started: list[subprocess.Popen[str]] = []
    try:
        yield Running(testbed, started)
    finally:
        for process in started:
            process.kill()
            process.communicate()
        namespaces.down(testbed)


def test_a_small_message_does_not_wait_behind_a_full_queue(running: Running) -> None:
    running.run_until_ready(2, SINK)
    for node in (0, 1):  # windows are those of the routes from a pair's second connection on
        running.run(node, TRIPS, 2).communicate(timeout=200)
    for node in (0, 1):  # twice what the link of node 2 carries
        running.run_until_ready(node, BULK, 2)
    round_trip, _ = running.run(0, TRIPS, 2).communicate(timeout=200)
    assert 0 < float(round_trip) < QUEUE_SECONDS / 2


def test_acknowledgements_do_not_wait_behind_what_their_node_sends() -> None:
    """Pairs are measured in both directions at once. What the fast node sends queues for the slow
    one's NIC, and so would the acknowledgements of what the slow one sends."""
    cluster = grid_cluster(2, 1, (0.4, 0.1))
    testbed = namespaces.up(cluster, 1.0, 2.5)
    try:
        check_testbed(testbed, cluster)  # windows hold from a pair's second connection on
        assert check_testbed(testbed, cluster).largest_error <= 0.05
    finally:
        namespaces.down(testbed)
