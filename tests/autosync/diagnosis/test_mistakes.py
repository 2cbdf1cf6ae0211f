"""Each mistake from a job that makes it, and none from one that does not."""

from dataclasses import replace

import pytest
from torch import nn

from autosync.diagnosis.breakdown import Breakdown, CollectiveSeconds, RankSeconds
from autosync.diagnosis.job_facts import DdpFacts, JobFacts, wrapping_of
from autosync.diagnosis.mistakes import find_mistakes
from autosync.diagnosis.pci_topology import FarPort

MB = 1_000_000
RANK = RankSeconds(0, "a", 1.0, 0.6, 0.2, 0.0, 0.0, 0.1, 0.0, 0.5)
SUM = CollectiveSeconds(0, "all_reduce", 25 * MB, 0.5, 0.0, 0.1, 0.1, 25.0 * MB)
METRIC = replace(SUM, size_bytes=4)
GOOD = Breakdown((RANK, replace(RANK, rank=1)), (SUM, SUM), None, 10, True, "nccl")
DDP = DdpFacts(False, True, (25 * MB, 25 * MB), 0)
FACTS = JobFacts(0, "a", "ddp", "cuda", "nccl", False, 50 * MB, DDP, "eth0", 10.0)
JOB = (FACTS, replace(FACTS, rank=1, host="b"))


def names(breakdown: Breakdown, *facts: JobFacts, passes: int = 1) -> list[str]:
    return [each.name for each in find_mistakes(breakdown, facts, passes)]


def all_ranks(**changed: object) -> tuple[JobFacts, ...]:
    return tuple(replace(each, **changed) for each in JOB)  # type: ignore[arg-type]


def in_all_parts(**seconds: float) -> Breakdown:
    ranks = tuple(replace(each, **seconds) for each in GOOD.ranks)  # type: ignore[arg-type]
    return replace(GOOD, ranks=ranks)


FAST: dict[str, object] = {"interface_gbps": 100.0}
LOOKING = replace(DDP, find_unused_parameters=True)
NEEDED = replace(LOOKING, unused_bytes=4)
HIDES_NOTHING, IDLE = in_all_parts(transfer=0.5), in_all_parts(python=0.3)


@pytest.mark.parametrize(
    ("breakdown", "facts", "passes", "found"),
    [
        (GOOD, JOB, 1, ""),
        (GOOD, all_ranks(backend="gloo"), 1, "gloo_on_gpu"),
        (GOOD, all_ranks(**FAST), 1, "one_socket"),
        (GOOD, all_ranks(**FAST, nccl_sockets=("NCCL_SOCKET_NTHREADS",)), 1, ""),
        (GOOD, all_ranks(ddp=LOOKING), 1, "find_unused_parameters"),
        (GOOD, (JOB[0], replace(JOB[1], ddp=NEEDED)), 1, ""),
        (GOOD, (replace(JOB[0], ddp=LOOKING), replace(JOB[1], ddp=NEEDED)), 1, ""),
        (replace(GOOD, collectives=(SUM,) * 4), JOB, 2, "accumulation_without_no_sync"),
        (replace(GOOD, collectives=(SUM,) * 2), JOB, 2, ""),
        (replace(GOOD, collectives=(SUM, SUM, METRIC, METRIC)), JOB, 2, ""),
        (HIDES_NOTHING, all_ranks(compiled=True), 1, "compiled_as_one_region"),
        (HIDES_NOTHING, JOB, 1, ""),
        (GOOD, all_ranks(compiled=True), 1, ""),
        (IDLE, JOB, 1, "host_bound"),
        (replace(IDLE, on_device=False), JOB, 1, ""),
        (in_all_parts(input=0.1), (), 1, "waits_for_input"),
    ],
)
def test_a_mistake_is_found_where_it_is_made_and_nowhere_else(
    breakdown: Breakdown, facts: tuple[JobFacts, ...], passes: int, found: str
) -> None:
    assert names(breakdown, *facts, passes=passes) == found.split()


def test_a_model_that_torch_synchronizes_is_not_bare() -> None:
    """By the names of classes: those of torch take a process group."""

    class FullyShardedDataParallel(nn.Sequential):
        pass

    class DistributedDataParallel(nn.Sequential):
        pass

    class FSDPModule(nn.Linear):
        pass

    assert wrapping_of(nn.Sequential(nn.Linear(2, 2))) == "none"
    assert wrapping_of(nn.Sequential(FSDPModule(2, 2))) == "fsdp2"
    assert wrapping_of(FullyShardedDataParallel(nn.Linear(2, 2))) == "fsdp1"
    of_two = nn.ModuleList(DistributedDataParallel(nn.Linear(2, 2)) for _ in range(2))
    assert wrapping_of(of_two) == "ddp"


def test_an_interface_that_is_slower_than_another() -> None:
    slow = all_ranks(others_gbps=(("ib0", 100.0), ("eth1", 12.0)))
    (found,) = find_mistakes(GOOD, slow)
    assert found.name == "slow_interface"
    assert "NCCL_SOCKET_IFNAME=ib0" in found.mend
    assert names(GOOD, *all_ranks(others_gbps=(("eth1", 12.0),))) == []
    on_one_host = [replace(each, host="a") for each in slow]
    assert names(GOOD, *on_one_host) == []


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


def test_gradients_that_are_held_twice() -> None:
    copied = replace(DDP, gradient_as_bucket_view=False)
    (found,) = find_mistakes(GOOD, all_ranks(ddp=copied))
    assert found.name == "gradient_as_bucket_view"
    assert "50.0 MB" in found.what


def test_an_option_that_distribute_sets_by_itself_is_named_with_its_place() -> None:
    (found,) = find_mistakes(GOOD, all_ranks(ddp=LOOKING))
    assert "find_unused_parameters=False" in found.mend
    assert "ddp_options" in found.mend


def test_many_small_messages() -> None:
    small = replace(SUM, size_bytes=1000)
    many = replace(GOOD, collectives=(small,) * 10)
    (found,) = find_mistakes(many, JOB)
    assert found.name == "small_buckets"
    assert "bucket_cap_mb" in found.mend
    (sharded,) = find_mistakes(many, all_ranks(wrapping="fsdp2", ddp=None))
    assert "fully_shard" in sharded.mend
    (sharded,) = find_mistakes(many, all_ranks(wrapping="fsdp1", ddp=None))
    assert "auto_wrap_policy" in sharded.mend
    assert names(replace(GOOD, collectives=(small,) * 3), *JOB) == []
