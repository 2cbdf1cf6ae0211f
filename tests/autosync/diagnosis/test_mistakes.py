"""Each mistake from a job that makes it, and none from one that does not."""

from dataclasses import replace

import pytest

from autosync.diagnosis.breakdown import Breakdown, CollectiveSeconds, RankSeconds
from autosync.diagnosis.job_facts import DdpFacts, JobFacts
from autosync.diagnosis.mistakes import find_mistakes
from autosync.diagnosis.pci_topology import FarPort

MB = 1_000_000
RANK = RankSeconds(0, "a", 1.0, 0.6, 0.2, 0.0, 0.0, 0.1, 0.0, 0.5)
SUM = CollectiveSeconds(0, "all_reduce", 25 * MB, 0.5, 0.0, 0.1, 0.1, 25.0 * MB)
GOOD = Breakdown((RANK, replace(RANK, rank=1)), (SUM, SUM), None, 10, True, "nccl")
DDP = DdpFacts(False, True, False, (25 * MB, 25 * MB), 0)
FACTS = JobFacts(0, "a", "ddp", "cuda", "nccl", False, 50 * MB, DDP, "eth0", 10.0)
JOB = (FACTS, replace(FACTS, rank=1, host="b"))


def names(breakdown: Breakdown, *facts: JobFacts, passes: int = 1) -> list[str]:
    return [each.name for each in find_mistakes(breakdown, facts, passes)]


def all_ranks(**changed: object) -> tuple[JobFacts, ...]:
    return tuple(replace(each, **changed) for each in JOB)  # type: ignore[arg-type]


def in_all_parts(**seconds: float) -> Breakdown:
    ranks = tuple(replace(each, **seconds) for each in GOOD.ranks)  # type: ignore[arg-type]
    return replace(GOOD, ranks=ranks)


def test_a_job_without_mistakes() -> None:
    assert names(GOOD, *JOB) == []


def test_gloo_on_gpus() -> None:
    assert names(GOOD, *all_ranks(backend="gloo")) == ["gloo_on_gpu"]


def test_an_interface_that_is_slower_than_another() -> None:
    slow = all_ranks(others_gbps=(("ib0", 100.0), ("eth1", 12.0)))
    (found,) = find_mistakes(GOOD, slow)
    assert found.name == "slow_interface"
    assert "NCCL_SOCKET_IFNAME=ib0" in found.mend
    assert names(GOOD, *all_ranks(others_gbps=(("eth1", 12.0),))) == []
    on_one_host = [replace(each, host="a") for each in slow]
    assert names(GOOD, *on_one_host) == []


def test_one_socket_on_a_fast_port() -> None:
    assert names(GOOD, *all_ranks(interface_gbps=100.0)) == ["one_socket"]
    told = all_ranks(interface_gbps=100.0, nccl_sockets=("NCCL_SOCKET_NTHREADS",))
    assert names(GOOD, *told) == []


def test_a_port_that_is_far_from_its_gpu() -> None:
    first = replace(JOB[0], far_port=FarPort(1, "mlx5_0", 0, "mlx5_4"))
    (found,) = find_mistakes(GOOD, (first, JOB[1]))
    assert found.name == "far_nic"
    assert "rank 0 on a sends by mlx5_0, which is at NUMA node 0, the GPU at node 1" in found.what
    assert "NCCL_IB_HCA=mlx5_4" in found.mend
    nowhere_near = all_ranks(far_port=FarPort(1, "eth0", 0, ""))
    (found,) = find_mistakes(GOOD, nowhere_near)
    assert "same holds for 1 other" in found.what
    assert "CUDA_VISIBLE_DEVICES" in found.mend
    behind = FarPort(0, "eth0", 0, "eth1")
    (found,) = find_mistakes(GOOD, all_ranks(far_port=behind))
    assert "another host bridge" in found.what
    assert "NCCL_SOCKET_IFNAME=eth1" in found.mend
    assert names(GOOD, *(replace(each, host="a") for each in nowhere_near)) == []


def test_unused_parameters_are_looked_for_in_vain() -> None:
    looking = replace(DDP, find_unused_parameters=True)
    assert names(GOOD, *all_ranks(ddp=looking)) == ["find_unused_parameters"]
    needed = replace(looking, unused_bytes=4)
    assert names(GOOD, JOB[0], replace(JOB[1], ddp=needed)) == []
    mixed = (replace(JOB[0], ddp=looking), replace(JOB[1], ddp=needed))
    assert names(GOOD, *mixed) == []


def test_gradients_that_are_held_twice() -> None:
    copied = replace(DDP, gradient_as_bucket_view=False)
    (found,) = find_mistakes(GOOD, all_ranks(ddp=copied))
    assert found.name == "gradient_as_bucket_view"
    assert "50.0 MB" in found.what


@pytest.mark.parametrize(
    ("sums", "passes", "found"),
    [(2, 1, []), (4, 2, ["accumulation_without_no_sync"]), (2, 2, [])],
)
def test_accumulation_without_no_sync(sums: int, passes: int, found: list[str]) -> None:
    assert names(replace(GOOD, collectives=(SUM,) * sums), *JOB, passes=passes) == found


def test_one_compiled_region_overlaps_with_nothing() -> None:
    hidden_nothing = in_all_parts(transfer=0.5)
    assert names(hidden_nothing, *all_ranks(compiled=True)) == ["compiled_as_one_region"]
    assert names(hidden_nothing, *JOB) == []
    assert names(GOOD, *all_ranks(compiled=True)) == []


def test_many_small_messages() -> None:
    small = replace(SUM, size_bytes=1000)
    many = replace(GOOD, collectives=(small,) * 10)
    (found,) = find_mistakes(many, JOB)
    assert found.name == "small_buckets"
    assert "bucket_cap_mb" in found.mend
    (sharded,) = find_mistakes(many, all_ranks(wrapping="fsdp2", ddp=None))
    assert "fully_shard" in sharded.mend
    assert names(replace(GOOD, collectives=(small,) * 3), *JOB) == []


def test_a_host_that_is_too_slow_for_its_gpu() -> None:
    idle = in_all_parts(python=0.3)
    assert names(idle, *JOB) == ["host_bound"]
    assert names(replace(idle, on_device=False), *JOB) == []


def test_input_that_ranks_wait_for() -> None:
    assert names(in_all_parts(input=0.1)) == ["waits_for_input"]
