"""Small messages beside bulk on real shaped links: no queue of the testbed's own holds them up."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from autosync.cluster import Cluster
from autosync.trials.testbed import namespaces
from autosync.trials.testbed.link_shaping import QUEUE_SECONDS
from autosync.trials.testbed.namespaces import Testbed
from autosync.trials.testbed.self_check import InaccurateLink, check_testbed
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
print(statistics.quantiles(spent, n=4)[0])
"""
"""The lower quartile: what a full queue holds up is slow each time, and a busy machine now and
then."""

RATE = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 7000))
connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
connection.sendall(b"b" + bytes(1 << 19))
spent = []
for _ in range(8):
    begun = time.monotonic()
    connection.sendall(bytes(1 << 19))
    spent.append(time.monotonic() - begun)
print((1 << 19) / min(spent))
"""
"""Of the fastest eighth: a busy machine may hold up some."""

LINK_BYTES_PER_SECOND = 0.1e9 / 8 / 2.0


@dataclass(frozen=True)
class Running:
    """A testbed of eight nodes, and how to run a script of this file on one of them."""

    testbed: Testbed
    started: "list[subprocess.Popen[str]]"

    def run(self, node: int, script: str, *to: int) -> "subprocess.Popen[str]":
        addresses = [self.testbed.addresses[one] for one in to]
        command = [*self.testbed.prefix(node), sys.executable, "-c", script, *addresses]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def meet(self, pairs: list[tuple[int, int]]) -> None:
        """Windows are those of the routes from a pair's second connection on."""
        for first in [self.run(node, TRIPS, peer) for node, peer in pairs]:
            first.communicate(timeout=200)

    def run_until_ready(self, node: int, script: str, *to: int) -> None:
        output = self.run(node, script, *to).stdout
        assert output is not None
        assert output.readline() == "ready\n"


@pytest.fixture
def running() -> Iterator[Running]:
    testbed = namespaces.up(grid_cluster(8, 1, (0.1,) * 8), 1.0, 2.0)
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
    running.meet([(0, 2), (1, 2)])
    for node in (0, 1):  # twice what the link of node 2 carries
        running.run_until_ready(node, BULK, 2)
    round_trip, _ = running.run(0, TRIPS, 2).communicate(timeout=200)
    assert 0 < float(round_trip) < QUEUE_SECONDS / 2


def test_acknowledgements_do_not_wait_behind_what_their_node_sends(running: Running) -> None:
    """Six windows stand at the NIC of node 0. Node 7 has one under way to it, and would have to
    wait six times as long."""
    everyone = range(1, 7)
    for node in (0, *everyone):
        running.run_until_ready(node, SINK)
    running.meet([(0, node) for node in everyone] + [(7, 0)])
    for node in everyone:
        running.run_until_ready(0, BULK, node)
    bytes_per_second, _ = running.run(7, RATE, 0).communicate(timeout=200)
    assert float(bytes_per_second) > 0.6 * LINK_BYTES_PER_SECOND


def is_accurate(testbed: Testbed, cluster: Cluster) -> bool:
    try:
        check_testbed(testbed, cluster)
    except InaccurateLink:
        return False
    return True


def test_a_slow_node_sends_to_a_fast_one_while_that_sends_to_it() -> None:
    """What a fast node has under way stands in front of the slow one's acknowledgements, which data
    carries: it must be no more than the slow one has."""
    cluster = grid_cluster(2, 1, (0.4, 0.1))
    testbed = namespaces.up(cluster, 1.0, 2.5)
    try:
        is_accurate(testbed, cluster)  # windows hold from a pair's second connection on
        # A busy core may hold up a link for a while.
        assert any(is_accurate(testbed, cluster) for _ in range(4))
    finally:
        namespaces.down(testbed)
