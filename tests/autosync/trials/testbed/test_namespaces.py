"""Real network namespaces: built, shaped, found, taken down, and never left behind."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from autosync.api.engine.registry import AutoLauncher
from autosync.cluster import Cluster, Device, Node
from autosync.errors import InvalidInput, NotSupported
from autosync.trials.contract import Workload, reporting_waits
from autosync.trials.launchers.local_launcher import LocalPlace
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.testbed import namespaces
from autosync.trials.testbed.self_check import InaccurateLink
from tests.autosync.trials.contract_suite import until_gone
from tests.domains import domain_of, grid_cluster
from tests.waiting import lives

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
        assert testbed.alive
        for node, megabits in enumerate((200, 100, 50)):
            assert f"10.77.0.{node + 1}/16" in inside(testbed, node, "ip", "addr")
            shaped = inside(testbed, node, "tc", "class", "show", "dev", "eth0", "classid", "1:1")
            rate = int(shaped.split("rate ")[1].split("Kbit")[0]) / 1000
            assert rate == pytest.approx(megabits / 0.9564, rel=1e-3)
            assert inside(testbed, node, "ls", "/sys/class/net") == "eth0\n"
            speed = int(inside(testbed, node, "cat", "/sys/class/net/eth0/speed"))
            assert speed == round(50 / 0.9564)  # of the slowest, for all
    finally:
        namespaces.down(testbed)
    namespaces.down(testbed)  # twice is fine
    assert not testbed.alive


def test_nothing_shows_outside_and_two_never_collide() -> None:
    before = outside_view()
    first = namespaces.up(grid_cluster(2))
    second = namespaces.up(grid_cluster(2))
    try:
        assert outside_view() == before
        command = [*first.prefix(0), "sh", "-c", "echo inside; exec sleep 600"]
        listener = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with listener, listener.stdout as output:  # type: ignore[union-attr]
            assert output.readline() == "inside\n"
            namespaces.down(first)
            assert listener.wait(timeout=200) != 0  # what runs inside goes with it
        assert "eth0" in inside(second, 1, "ip", "addr")
    finally:
        namespaces.down(first)
        namespaces.down(second)
    assert outside_view() == before


def test_nccl_sends_over_the_interface_of_its_node() -> None:
    """Ranks share nothing but the testbed's links, whether they share a GPU or not."""
    workload = Workload(domain_of(cluster=grid_cluster(2)), byte_scale=0.5)
    for share_gpus in (False, True):
        launcher = TestbedLauncher(share_gpus=share_gpus, repeats=0, check=False)
        with launcher.open(workload) as pool:
            for rank, place in enumerate(pool.places):
                assert isinstance(place, LocalPlace)
                assert place.nccl is not None
                given = place.nccl(rank, place.interface)
                assert given["NCCL_SOCKET_IFNAME"] == "=eth0"
                assert given["NCCL_HOSTID"] == f"autosync-{rank}"
                assert ("NCCL_MAX_CTAS" in given) == share_gpus
            assert pool.share_gpus == share_gpus


def test_links_that_are_off_are_no_reason_to_scale_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be scaled beside them: `auto` then takes the loopback."""

    made: list[namespaces.Testbed] = []

    def too_slow(testbed: namespaces.Testbed, cluster: Cluster) -> None:
        made.append(testbed)
        raise InaccurateLink("the link carries 283 Mbit/s.", thing="link 0 -> 1", remedy="Scale.")

    monkeypatch.setattr("autosync.trials.launchers.testbed_launcher.check_testbed", too_slow)
    domain = domain_of(cluster=grid_cluster(2))
    with pytest.raises(InaccurateLink, match=r"Scale\."):
        TestbedLauncher().open(Workload(domain))
    computing = Workload(domain, compute="kernels")
    with pytest.raises(NotSupported, match=r"283 Mbit/s.*launcher local") as refused:
        TestbedLauncher().open(computing)
    assert "Scale" not in str(refused.value)
    told: list[str] = []
    launcher = reporting_waits(AutoLauncher(), told.append)
    with contextlib.closing(launcher.open(computing)) as pool:
        assert pool.description == "local (unshaped links), kernels on the CPU"
    assert told == [
        "trials run over the loopback, whose links are not shaped: the link carries 283 Mbit/s. "
        "Beside kernels nothing can be scaled."
    ]
    assert [testbed.alive for testbed in made] == [False] * 3


def outside_view() -> tuple[str, str]:
    """Interfaces and mounts of this process's own namespaces."""
    names = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    interfaces = ",".join(line.split(":")[0].strip() for line in names)
    return interfaces, Path("/proc/self/mounts").read_text()


OWNER = """
import time
from autosync.trials.testbed import namespaces
from tests.domains import grid_cluster
made = namespaces.up(grid_cluster(2))
print(made.supervisor.pid, flush=True)
time.sleep(600)
"""


def test_kill_minus_nine_leaves_no_testbed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    ) as owner:
        assert owner.stdout is not None
        supervisor = int(owner.stdout.readline())
        assert lives(supervisor)
        owner.kill()
        owner.wait()
        until_gone([supervisor])


def test_ranks_of_a_node_share_its_namespace_and_say_how_they_talk() -> None:
    nodes = [Node(f"h{i}", (Device("cpu", 2),), 0.1, inner) for i, inner in enumerate((0.5, 20.0))]
    cluster = Cluster("pairs", tuple(nodes))
    launcher = TestbedLauncher(check=False)
    with launcher.open(Workload(domain_of(cluster=cluster))) as pool:
        places = [place for place in pool.places if isinstance(place, LocalPlace)]
        prefixes = [place.prefix for place in places]
        assert prefixes[0] == prefixes[1] != prefixes[2] == prefixes[3]
        assert "intra-node links shaped" in pool.description
    assert not any(Path(place.namespaces[-1]).exists() for place in places)


def test_more_than_the_cores_carry_is_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"40\.0 Gbit/s together at byte scale 1 and time scale 1"
    ):
        TestbedLauncher().open(Workload(domain_of(cluster=grid_cluster(4, 1, 10.0))))
