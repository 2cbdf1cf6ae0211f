"""The interface that a rank sends by, from what the system and NCCL's variables say."""

from pathlib import Path

import pytest

from autosync.diagnosis import job_facts
from autosync.diagnosis.pci_topology import PciDevice

ADAPTER = PciDevice("mlx5_0", "/sys/devices/pci0000:40/0000:40:03.1/0000:45:00.0", 0)


@pytest.fixture
def two_interfaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """eth0 has the host's address and 1 Gbit/s, eth1 100 Gbit/s; a pod has one of its own."""
    for name, megabits in (("eth0", 1_000), ("eth1", 100_000), ("cali7f0c", 10_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text("up\n")
        (tmp_path / name / "speed").write_text(f"{megabits}\n")
    monkeypatch.setattr(job_facts, "INTERFACES", tmp_path)
    monkeypatch.setattr(job_facts, "rdma_ports", lambda: ())
    monkeypatch.setattr(job_facts, "_own_address", lambda: "10.0.0.1")
    monkeypatch.setattr(job_facts, "_interface_of", lambda address: "eth0")
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_NET"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("stated", "chosen"),
    [
        ("", "eth0"),
        ("eth1", "eth1"),
        ("=eth1", "eth1"),
        ("^eth0", "eth1"),
        ("^=eth1", "eth0"),
        ("^docker0,lo", ""),  # NCCL may take either
        ("ib", ""),
    ],
)
@pytest.mark.usefixtures("two_interfaces")
def test_the_interface_that_nccl_is_told_to_take(
    stated: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", stated)
    rates = {"eth0": 1.0, "eth1": 100.0}
    others = tuple((name, rate) for name, rate in rates.items() if name != chosen)
    assert job_facts.interfaces_of("nccl") == (chosen, rates.get(chosen), others)


@pytest.mark.usefixtures("two_interfaces")
def test_no_interface_carries_the_messages_of_rdma_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_facts, "rdma_ports", lambda: (ADAPTER,))
    by_socket = ("eth0", 1.0, (("eth1", 100.0),))
    assert job_facts.interfaces_of("nccl") == ("", None, ())
    for name, value in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket")):
        with monkeypatch.context() as only:
            only.setenv(name, value)
            assert job_facts.interfaces_of("nccl") == by_socket
