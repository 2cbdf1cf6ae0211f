"""The command launcher: the contract suite through namespaces and a stand-in for ssh, and what a
prefix may hold."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosync.cluster import Cluster, Device, Node
from autosync.errors import InvalidInput
from autosync.trials.contract import TrialRequest, Workload
from autosync.trials.launchers.command_launcher import CommandLauncher, CommandPlace
from autosync.trials.pool.process_pool import ProcessPool
from tests.autosync.trials.conftest import FAULTY
from tests.autosync.trials.contract_suite import PoolContract, SecondNode, assert_failed
from tests.autosync.trials.strategies import ddp
from tests.domains import chain_graph, domain_of

ROOT = Path(__file__).parents[4]
TALKATIVE_SSH = """#!/bin/sh
# Like ssh: joins its words, hands them to a shell with an environment of its own.
host=$1; shift
echo "Welcome to $host"
exec env -i PATH=/usr/bin:/bin sh -c "$*"
"""


def cluster_at(*addresses: str) -> Cluster:
    return Cluster("hosts", tuple(Node(a, (Device("cpu"),), 0.956) for a in addresses))


def workload_at(*addresses: str) -> Workload:
    domain = domain_of(chain_graph(), cluster_at(*addresses), 2e-4)
    return Workload(domain, name="faulty", byte_scale=0.5)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=200)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[str]:
    """Two named network namespaces joined by a cable; their common name without the number."""
    name = f"asc{os.getpid()}-"
    try:
        ip("netns", "add", f"{name}0")
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"NO NAMED NETWORK NAMESPACES HERE, their tests do not run: {error}")
    try:
        ip("netns", "add", f"{name}1")
        ip(*f"-n {name}0 link add eth0 type veth peer eth0 netns {name}1".split())
        for number in (0, 1):
            ip(*f"-n {name}{number} address add 10.78.0.{number + 1}/24 dev eth0".split())
            for device in ("lo", "eth0"):
                ip("-n", f"{name}{number}", "link", "set", device, "up")
        yield name
    finally:
        for number in (0, 1):
            subprocess.run(["ip", "netns", "delete", f"{name}{number}"], check=False)


@pytest.fixture(scope="module")
def pool(namespaces: str, marked: None) -> Iterator[ProcessPool]:
    launcher = CommandLauncher(f"ip netns exec {namespaces}{{node}}", workloads=FAULTY, repeats=0)
    with launcher.open(workload_at("10.78.0.1", "10.78.0.2")) as opened:
        yield opened


def test_each_rank_runs_on_its_own_host(pool: ProcessPool, namespaces: str) -> None:
    pool.warm_up()
    for number, process in enumerate(pool.worker_pids()):
        entered = os.readlink(f"/proc/{process}/ns/net")
        assert entered == f"net:[{os.stat(f'/run/netns/{namespaces}{number}').st_ino}]"


@pytest.fixture
def second_node(pool: ProcessPool, namespaces: str) -> SecondNode:
    """Behind `ip netns exec` a host without its namespace is one that cannot be reached."""

    def lose() -> None:
        os.kill(pool.worker_pids()[1], signal.SIGKILL)
        ip("netns", "delete", f"{namespaces}1")

    host = "rank 1 on host '10.78.0.2'"
    return SecondNode(lose, f"{host} ended with status -9", ("crashed", host))


class TestCommandLauncher(PoolContract):
    """Behind `ip netns exec`."""

    @pytest.mark.long  # workers start twice, and each loads torch
    def test_a_lost_node_costs_its_trial_and_is_named(
        self, pool: ProcessPool, second_node: SecondNode
    ) -> None:
        super().test_a_lost_node_costs_its_trial_and_is_named(pool, second_node)


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    script = tmp_path / "ssh"
    script.write_text(TALKATIVE_SSH)
    script.chmod(0o755)
    return script


def test_words_survive_a_remote_shell(stand_in: Path, tmp_path: Path) -> None:
    """Spaces, quotes and dollars in what is passed arrive as they were."""
    odd = tmp_path / "it's $HOME; a dir"
    odd.symlink_to(ROOT)
    here = (("PYTHONPATH", str(odd)),)
    launcher = CommandLauncher(
        f"{stand_in} {{host}}", environment=here, workloads=FAULTY, repeats=0
    )
    with launcher.open(workload_at("127.0.0.1", "127.0.0.2")) as opened:
        result = opened.run(TrialRequest("a", ddp(opened.workload.domain), iterations=3))
        assert result.error is None, result.error
        shell = opened.worker_pids()[0]
        worker = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0]
        environment = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    assert result.launcher == "command (ssh, 2 hosts)"
    assert f"PYTHONPATH={odd}".encode() in environment
    assert not any(entry.startswith(b"HOME=") for entry in environment)


def test_a_host_that_cannot_be_reached_is_named_with_the_command() -> None:
    launcher = CommandLauncher("ssh -p 9 -o BatchMode=yes {host}", environment=(("KEY", "hidden"),))
    with launcher.open(workload_at("127.0.0.1", "127.0.0.2")) as opened:
        result = opened.run(TrialRequest("a", ddp(opened.workload.domain)))
    words = ("on host '127.0.0.", "ssh -p 9 -o BatchMode=yes 127.0.0.", "255", "It wrote: ")
    assert_failed(result, "crashed", *words, "refused")
    assert result.error is not None
    assert "hidden" not in result.error.message
    assert "refused" in result.error.stderr_tail


def test_a_prefix_that_only_waits_is_told_with_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autosync.trials.pool.worker_group.START_SECONDS", 1.0)
    monkeypatch.setattr("autosync.trials.pool.worker_group.SLOW_SECONDS", 0.1)
    told: list[str] = []
    prefix = "sh -c 'echo Password for {host}: >&2; sleep 600'"
    launcher = CommandLauncher(prefix).with_wait_reports(told.append)
    with launcher.open(workload_at("127.0.0.1", "127.0.0.2")) as opened:
        result = opened.run(TrialRequest("a", ddp(opened.workload.domain)))
    assert_failed(result, "timeout", "no answer within 1 s", "It wrote: Password for 127.0.0.1:")
    (slow,) = told
    assert slow.startswith("waits for ranks to start: no answer yet from rank 0 on host '127.0.0.1")


def test_a_missing_program_is_named() -> None:
    with CommandLauncher("no-such-ssh {host}").open(workload_at("a", "b")) as opened:
        result = opened.run(TrialRequest("a", ddp(opened.workload.domain)))
    assert_failed(result, "refused", "no-such-ssh a")


def words(prefix: str, command: list[str]) -> list[str]:
    return CommandPlace(CommandLauncher(prefix), "node-7", 3, 5).words(command)


def test_prefixes() -> None:
    plain = ["python", "-c", "a b"]
    assert words("srun -w {host} -n1", plain) == ["srun", "-w", "node-7", "-n1", *plain]
    assert words("kubectl exec -i pod-{rank} --", plain)[3] == "pod-5"
    assert words("ssh {host}", plain) == ["ssh", "node-7", "python -c 'a b'"]
    for before in (["sshpass", "-e"], ["env", "HOME=/root"], ["timeout", "600"]):
        prefix = f"{' '.join(before)} /usr/bin/ssh {{host}}"
        assert words(prefix, plain) == [*before, "/usr/bin/ssh", "node-7", "python -c 'a b'"]
    mpirun = ["mpirun", "--mca", "plm_rsh_agent", "ssh", "-host", "node-7", "-n", "1"]
    assert words("mpirun --mca plm_rsh_agent ssh -host {host} -n 1", plain) == [*mpirun, *plain]
    assert words("ssh head mpirun -bootstrap ssh -hosts {host}", plain)[-1] == "python -c 'a b'"
    assert words("ssh {host} 'cd w && exec {command}'", plain) == [
        "ssh",
        "node-7",
        "cd w && exec python -c 'a b'",
    ]
    assert words("sh -c 'exec {command}' {node}", plain)[-2:] == ["exec python -c 'a b'", "3"]


@pytest.mark.parametrize("prefix", ["", "ssh {hosts}", "ssh 'open"])
def test_unusable_prefixes_are_refused(prefix: str) -> None:
    with pytest.raises(InvalidInput, match="prefix"):
        CommandLauncher(prefix).open(workload_at("a", "b"))


@pytest.mark.parametrize("address", ["-oProxyCommand=id", "a; id", "$(id)", "a b", ""])
def test_addresses_that_are_more_than_an_address_are_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="address"):
        CommandLauncher("ssh {host}").open(workload_at(address, "b"))


def test_python_and_interface_are_the_operators_choice() -> None:
    launcher = CommandLauncher("srun", python="/opt/py/bin/python", interface="ib0")
    command = CommandPlace(launcher, "a", 0, 0).worker_command(("w=m:f",))
    assert command[0] == "env"
    assert "GLOO_SOCKET_IFNAME=ib0" in command
    assert shlex.join(command).endswith(
        "/opt/py/bin/python -m autosync.trials.worker.worker_main --workloads w=m:f"
    )
    assert sys.executable not in command
