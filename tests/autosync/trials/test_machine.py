"""Which interface leads to other hosts, what it has sent, and whose CPU time it is."""

import socket
import subprocess
import sys
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from autosync.errors import NotSupported
from autosync.trials import machine
from autosync.trials.machine import family_seconds, interface_towards, network_bytes


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that knows its own name by a loopback address; its interfaces are called by theirs."""
    ways = {"self": "127.0.1.1", "peer": "10.0.0.1", "storage": "10.1.0.1"}
    monkeypatch.setattr(machine, "_address_towards", lambda host: IPv4Address(ways[host]))
    monkeypatch.setattr(machine, "_interface_with", str)


@pytest.mark.usefixtures("names")
def test_a_host_that_is_its_own_loopback_binds_where_its_peers_are() -> None:
    assert interface_towards("self", "peer") == "10.0.0.1"
    assert interface_towards("storage", "peer") == "10.1.0.1"
    assert interface_towards("self") == "127.0.1.1"  # the only host


def test_hosts_of_this_machine_meet_on_its_loopback() -> None:
    assert interface_towards("127.0.1.1", "127.0.0.2") == "lo"


def test_of_two_interfaces_in_one_network_the_one_with_the_address_leads_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = {"lo": "127.0.0.1", "eth0": "10.0.0.5", "eth1": "10.0.0.6"}
    masks = {"lo": "255.0.0.0", "eth0": "255.255.255.0", "eth1": "255.255.255.0"}

    def stated(probe: socket.socket, name: str, request: int) -> int:
        return int(IPv4Address((addresses if request == machine.SIOCGIFADDR else masks)[name]))

    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses, start=1)))
    monkeypatch.setattr(machine, "_interface_field", stated)
    for mine, name in (("10.0.0.5", "eth0"), ("10.0.0.6", "eth1"), ("127.0.1.1", "lo")):
        monkeypatch.setattr(machine, "_address_towards", lambda host, mine=mine: IPv4Address(mine))
        assert interface_towards("there") == name


def test_a_host_that_cannot_be_reached_is_named_with_the_way_out() -> None:
    with pytest.raises(NotSupported, match=r"no way to host '255\.255\.255\.255'.*`interface`"):
        interface_towards("127.0.1.1", "255.255.255.255")  # a broadcast is no connection


def test_bytes_are_of_the_named_interfaces() -> None:
    before = network_bytes("lo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x" * 1000, ("127.0.0.1", 9))
    assert network_bytes("lo") >= before + 1000
    assert network_bytes("no-such") == 0


def test_bytes_of_a_bond_and_of_a_vlan_count_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent = {"lo": 7, "eth0": 100, "eth1": 200, "bond0": 300, "bond0.5": 290}
    lines = [f"{name}: {'0 ' * 8}{count} 0" for name, count in sent.items()]
    monkeypatch.setattr(Path, "read_text", lambda path: "\n".join(["", "", *lines]))
    monkeypatch.setattr(machine, "INTERFACES", tmp_path)
    for upper, lower in (("bond0", "eth0"), ("bond0", "eth1"), ("bond0.5", "bond0")):
        (tmp_path / upper / f"lower_{lower}").mkdir(parents=True)
    assert network_bytes() == 300
    assert network_bytes("bond0,lo") == 307


BURN = "import time\nwhile time.process_time() < 0.5: pass"
"""Half a second of CPU time, however long that takes beside others."""


@pytest.mark.parametrize("reaped", [True, False])
def test_processes_that_a_job_started_count_as_its_own(reaped: bool) -> None:
    before = family_seconds()
    waits = "" if reaped else "\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", BURN + waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as helper:
        assert helper.stdout is not None
        helper.stdout.readline()  # a line, or the end
        if reaped:
            helper.wait()
        used_seconds = family_seconds() - before
        helper.communicate(b"\n")
    assert used_seconds >= 0.25
