"""What a testbed finds out about itself, and how a launcher refuses one that is not as stated."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from autosync.cluster import Cluster, Device, Link
from autosync.trials.contract import Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher, description
from autosync.trials.request_names import SHORT_OF_CORES
from autosync.trials.testbed import namespaces, payload_rates, self_check
from autosync.trials.testbed.namespaces import Testbed
from autosync.trials.testbed.self_check import (
    AllReduceTime,
    InaccurateLink,
    LinkRate,
    RateProbes,
    SelfCheck,
    check_testbed,
    measured_links,
    refuse_inaccurate,
)
from tests.domains import domain_of, grid_cluster

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("testbed_possible")]


def test_links_carry_what_the_file_says_exceptions_and_loopbacks_too() -> None:
    # Slow links: what carries this traffic must not be in doubt on a busy machine.
    cluster = replace(
        grid_cluster(3, 1, (0.04, 0.04, 0.02)), links=(Link(("10.77.0.1", "10.77.0.2"), 0.008),)
    )
    two_ranks = replace(cluster.nodes[2], devices=(Device("cpu", 2),), intra_bandwidth_gbps=0.032)
    cluster = replace(cluster, nodes=(*cluster.nodes[:2], two_ranks))
    testbed = namespaces.up(cluster)
    named: list[tuple[int, int]] = []
    try:
        for _ in range(5):  # a busy core may hold up any of the links for a while
            try:
                checked = check_testbed(testbed, cluster)
            except InaccurateLink:
                continue
            named += [one.slowest for one in checked.all_reduces]
            if named.count((0, 1)) * 2 > len(named):
                break
    finally:
        namespaces.down(testbed)
    assert named.count((0, 1)) * 2 > len(named)  # of all streams, most wait for this link
    rates = {(link.sender, link.to): link.bytes_per_second * 8e-6 for link in checked.links}
    assert rates == pytest.approx(
        {(0, 1): 8, (1, 0): 8, (0, 2): 20, (2, 0): 20, (1, 2): 20, (2, 1): 20, (2, 2): 32}, rel=0.05
    )
    # A ring of three moves 4/3 of the bytes over every link, one of which has 1 MB/s.
    assert [one.size_bytes for one in checked.all_reduces] == [60_000, 22_500, 7_500]
    for one in checked.all_reduces:
        assert one.seconds == pytest.approx(one.size_bytes * 4 / 3 / 1e6, rel=0.05)
    assert checked.largest_error <= 0.05
    assert checked.latency_seconds is not None
    usual, longest = checked.latency_seconds
    assert 0 < usual <= longest


def test_a_step_that_a_processor_holds_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    receive, steps = payload_rates._receive_piece, iter([0.01, 0.02, 0.03, 9.0, 0.01])

    def received(connection: socket.socket, buffer: memoryview) -> float:
        receive(connection, buffer)
        return next(steps)

    monkeypatch.setattr(payload_rates, "_receive_piece", received)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # a ring of one
        address, port = listener.getsockname()
        command = {"address": address, "port": port, "rounds": [[100, 5]]}
        assert payload_rates.run_ring(command, listener)["arriving"] == [0.02]


def test_inaccurate_links_are_named() -> None:
    links = (LinkRate(0, 1, 1.01e6, 1e6), LinkRate(1, 0, 0.9e6, 1e6))
    with pytest.raises(InaccurateLink, match=r"from node 1 to node 0 carries 7\.2 .* says 8\.0"):
        refuse_inaccurate(links)
    with pytest.raises(InaccurateLink, match=r"within node 2 carries 0\.0 .* says 8\.0"):
        refuse_inaccurate((*links, LinkRate(2, 2, 0.0, 1e6)))
    sound, slow = AllReduceTime(8000, 1.0, 0.01, (0, 1)), AllReduceTime(2000, 0.011, 0.1, (2, 0))
    with pytest.raises(
        InaccurateLink, match=r"of 2 KB takes 11\.0 ms .* say 10\.0; .* node 2 to node 0"
    ):
        refuse_inaccurate((sound, slow))
    refuse_inaccurate((sound,))


def stated_testbed(time_scale: float) -> Testbed:
    nowhere: Any = None
    return Testbed(1.0, time_scale, ("a", "b"), nowhere, False, "unshaped")


def test_the_description_tells_accuracy_and_latency() -> None:
    testbed = stated_testbed(1.0)
    workload = Workload(domain_of(cluster=grid_cluster(2)))
    links = (LinkRate(0, 1, 0.99e6, 1e6, 50e-6), LinkRate(1, 0, 1e6, 1e6, 90e-6))
    assert description(testbed, workload, SelfCheck(links, ()), 4) == (
        "testbed (2 nodes, link rates within 1.0% of the cluster file, "
        "latency 70 us, at worst 90 us, not emulated)"
    )
    assert description(testbed, workload, None, 4).endswith("not measured, latency not emulated)")


@pytest.mark.parametrize(
    ("cores", "time_scale", "words"), [(2, 1, "1"), (3, 1, "1.5"), (1, 2, "1")]
)
def test_the_description_tells_where_ranks_are_short_of_cores(
    cores: int, time_scale: float, words: str
) -> None:
    """Two for each rank are enough, on the machine or at the time scale's pace."""
    testbed = stated_testbed(time_scale)
    workload = Workload(domain_of(cluster=grid_cluster(2)), time_scale=time_scale)
    told = description(testbed, workload, None, cores)
    assert f"link rates not measured, short of cores ({words} a rank), latency" in told
    slower = replace(workload, time_scale=float(f"{4 / cores:.12g}"))  # as a contest writes it
    assert SHORT_OF_CORES not in description(testbed, slower, None, cores)


@pytest.fixture
def too_slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Testbed]]:
    """Every testbed that a launcher builds: its links have half the rate that the file says."""
    made: list[Testbed] = []
    up = namespaces.up

    def up_at_half(cluster: Cluster, byte_scale: float, time_scale: float) -> Testbed:
        slow = tuple(replace(one, bandwidth_gbps=one.bandwidth_gbps / 2) for one in cluster.nodes)
        made.append(up(replace(cluster, nodes=slow), byte_scale, time_scale))
        return made[-1]

    monkeypatch.setattr(namespaces, "up", up_at_half)
    yield made
    for testbed in made:
        namespaces.down(testbed)


def test_a_launcher_refuses_slow_links_and_takes_the_testbed_down(too_slow: list[Testbed]) -> None:
    workload = Workload(domain_of(cluster=grid_cluster(2, 1, 0.1)))
    with pytest.raises(InaccurateLink, match=r"carries \d\d\.\d Mbit/s where the file says 100\.0"):
        TestbedLauncher().open(workload)
    assert [testbed.alive for testbed in too_slow] == [False]


def test_an_interrupted_launcher_takes_the_testbed_down(
    too_slow: list[Testbed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> SelfCheck:
        raise KeyboardInterrupt

    monkeypatch.setattr("autosync.trials.launchers.testbed_launcher.check_testbed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        TestbedLauncher().open(Workload(domain_of(cluster=grid_cluster(2))))
    assert [testbed.alive for testbed in too_slow] == [False]


def test_a_probe_that_dies_ends_the_check_and_its_link_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = grid_cluster(2, 1, 0.1)
    expected = cluster.bandwidth_bytes_per_second()
    testbed = namespaces.up(cluster)
    try:
        with RateProbes(testbed, expected) as probes:
            monkeypatch.setattr(self_check, "PATIENCE_SECONDS", 0.2)
            probes._processes[0].kill()  # node 1 waits for it to dial
            with pytest.raises(InaccurateLink, match=r"link 0 -> 1 .* node 1 has not answered"):
                measured_links(probes, expected)
            with pytest.raises(InaccurateLink, match="the probe on node 0 has ended"):
                probes.pair(0, 1, dial=True)
    finally:
        namespaces.down(testbed)
