"""Real network namespaces: built, shaped, found, taken down, and never left behind."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.cluster import Cluster, Device, Link, Node
from autosync.errors import InvalidInput, NotFound
from autosync.trials import namespaces
from autosync.trials.all_reduces import AllReduceTime, refuse_inaccurate_all_reduces
from autosync.trials.contract import Workload
from autosync.trials.links import LinkRate, refuse_inaccurate_links
from autosync.trials.machine import process_start
from autosync.trials.rate_probes import InaccurateLink
from autosync.trials.self_check import self_check
from autosync.trials.testbed import TestbedLauncher
from tests.domains import domain_of, grid_cluster

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("testbed_possible")]


def inside(testbed: namespaces.Testbed, node: int, *command: str) -> str:
    return subprocess.run(
        [*testbed.prefix(node), *command], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("unprivileged", [False, True])
def test_a_namespace_a_node_with_shaped_links(unprivileged: bool) -> None:
    cluster = grid_cluster(3, 1, (0.8, 0.4, 0.2))
    testbed = namespaces.up(cluster, 0.5, 2.0, unprivileged=unprivileged)
    try:
        assert testbed in namespaces.status()
        assert namespaces.find(testbed.id) == testbed
        for node, megabits in enumerate((200, 100, 50)):
            assert f"10.77.0.{node + 1}/16" in inside(testbed, node, "ip", "addr")
            shaped = inside(testbed, node, "tc", "qdisc", "show", "dev", "eth0")
            rate = int(shaped.split("rate ")[1].split("Kbit")[0]) / 1000
            assert rate == pytest.approx(megabits / 0.9564, rel=1e-3)
    finally:
        namespaces.down(testbed)
    namespaces.down(testbed)  # twice is fine
    assert not testbed.alive
    assert testbed not in namespaces.status()
    with pytest.raises(NotFound, match=testbed.id):
        namespaces.find(testbed.id)


def test_nothing_shows_outside_and_two_never_collide() -> None:
    before = outside_view()
    first = namespaces.up(grid_cluster(2))
    second = namespaces.up(grid_cluster(2))
    try:
        assert outside_view() == before
        assert {first.id, second.id} <= {testbed.id for testbed in namespaces.status()}
        command = [*first.prefix(0), "sh", "-c", "echo inside; exec sleep 600"]
        listener = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with listener, listener.stdout as said:  # type: ignore[union-attr]
            assert said.readline() == "inside\n"
            namespaces.down(first)
            assert listener.wait(timeout=60) != 0  # what runs inside goes with it
        assert "eth0" in inside(second, 1, "ip", "addr")
    finally:
        namespaces.down(first)
        namespaces.down(second)
    assert outside_view() == before


def outside_view() -> tuple[str, str]:
    """Interfaces and mounts of this process's own namespaces."""
    names = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    interfaces = ",".join(line.split(":")[0].strip() for line in names)
    return interfaces, Path("/proc/self/mounts").read_text()


def test_kill_minus_nine_leaves_no_testbed() -> None:
    root = Path(__file__).parents[3]
    script = (
        "import time\n"
        "from autosync.trials import namespaces\n"
        "from tests.domains import grid_cluster\n"
        "made = namespaces.up(grid_cluster(2))\n"
        "print(made.id, made.supervisor[0], flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert owner.stdout is not None
    with owner.stdout:
        testbed_id, supervisor = owner.stdout.readline().split()
    owner.kill()
    owner.wait()
    wait_until(lambda: process_start(int(supervisor)) is None)
    assert testbed_id in namespaces.remove_stale() or testbed_id not in {
        testbed.id for testbed in namespaces.status()
    }
    assert testbed_id not in {testbed.id for testbed in namespaces._records()}


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(1200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it never came true")


def test_links_carry_what_the_file_says_exceptions_too() -> None:
    # Slow links: what carries this traffic must not be in doubt on a busy machine.
    cluster = replace(
        grid_cluster(3, 1, (0.04, 0.04, 0.02)),
        links=(Link(("10.77.0.1", "10.77.0.2"), 0.016),),
    )
    testbed = namespaces.up(cluster)
    try:
        checked = self_check(testbed, cluster)
    finally:
        namespaces.down(testbed)
    rates = {(link.sender, link.to): link.bytes_per_second * 8e-6 for link in checked.links}
    assert rates == pytest.approx(
        {(0, 1): 16, (1, 0): 16, (0, 2): 20, (2, 0): 20, (1, 2): 20, (2, 1): 20}, rel=0.05
    )
    # A ring of three moves 4/3 of the bytes over every link, one of which has 2 MB/s.
    assert [one.size_bytes for one in checked.all_reduces] == [120_000, 45_000, 15_000]
    for one in checked.all_reduces:
        assert one.seconds == pytest.approx(one.size_bytes * 4 / 3 / 2e6, rel=0.05)
    assert checked.all_reduces[0].slowest == (0, 1)
    assert checked.largest_error <= 0.05


def test_what_is_inaccurate_is_named() -> None:
    links = (LinkRate(0, 1, 1e6, 0.01, 0.0), LinkRate(1, 0, 0.9e6, -0.1, 0.0))
    with pytest.raises(InaccurateLink, match=r"from node 1 to node 0 carries 7\.2 .* says 8\.0"):
        refuse_inaccurate_links(links, "t")
    sound, slow = AllReduceTime(8000, 1.0, 0.01, (0, 1)), AllReduceTime(2000, 0.011, 0.1, (2, 0))
    with pytest.raises(
        InaccurateLink, match=r"of 2 KB takes 11\.0 ms .* say 10\.0; .* node 2 to node 0"
    ):
        refuse_inaccurate_all_reduces((sound, slow), "t")
    refuse_inaccurate_all_reduces((sound,), "t")


def test_ranks_of_a_node_share_its_namespace_and_say_how_they_talk() -> None:
    cluster = Cluster(
        "pairs",
        tuple(
            Node(f"h{i}", (Device("cpu", 2),), 0.1, inner) for i, inner in enumerate((0.5, 20.0))
        ),
    )
    launcher = TestbedLauncher(check=False)
    with launcher.open(Workload(domain_of(cluster=cluster))) as pool:
        prefixes = [placement.prefix for placement in pool.placements]
        assert prefixes[0] == prefixes[1] != prefixes[2] == prefixes[3]
        assert "intra-node links shaped" in pool.description
    assert all(cluster.name != testbed.cluster for testbed in namespaces.status())


def test_more_than_the_cores_carry_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"40\.0 Gbit/s together at s = 1, k = 1"):
        TestbedLauncher().open(Workload(domain_of(cluster=grid_cluster(4, 1, 10.0))))
