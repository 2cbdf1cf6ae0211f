"""Where the seconds go, from traces whose answer is known."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosync.diagnosis.breakdown import Breakdown, CollectiveSeconds, break_down, with_parameters
from autosync.diagnosis.job_facts import names_of_buckets
from autosync.diagnosis.rank_trace import rank_trace
from autosync.errors import InvalidInput
from tests.autosync.diagnosis.traces import event, gloo_step, nccl_step, trace

US = 1e-6


def of(*traces: dict[str, object]) -> Breakdown:
    return break_down([rank_trace(each, "t.json") for each in traces])


@pytest.fixture(scope="module")
def two_ranks() -> Breakdown:
    """Rank 0 issues at 530 and computes nothing more; rank 1 issues at 700; both end at 900."""
    return of(gloo_step(0, 530, 900), gloo_step(1, 700, 900))


def test_parts_of_an_iteration(two_ranks: Breakdown) -> None:
    found = two_ranks
    first, second = found.ranks
    assert first.compute == pytest.approx(400 * US)
    assert first.input == pytest.approx(100 * US)
    assert first.waiting == pytest.approx(170 * US)  # 530 to 700
    assert first.transfer == pytest.approx(200 * US)  # 700 to 900
    assert second.waiting == 0.0
    assert second.transfer == pytest.approx(200 * US)
    for rank in found.ranks:
        parts = rank.compute + rank.transfer + rank.waiting + rank.input + rank.python
        assert parts == pytest.approx(rank.iteration) == pytest.approx(1000 * US)


def test_a_collective_and_its_rate(two_ranks: Breakdown) -> None:
    found = two_ranks
    (only,) = found.collectives
    assert (only.operation, only.size_bytes) == ("all_reduce", 4000)
    assert only.bus_bytes == pytest.approx(4000)  # 2 (n - 1) / n of them
    assert only.waiting == pytest.approx(85 * US)  # the mean of 170 and 0
    assert only.transfer == pytest.approx(200 * US)
    assert found.bus_bytes_per_second == pytest.approx(4000 / (200 * US))


def test_a_rank_sends_to_all_of_the_job_also_to_those_whose_traces_are_not_given() -> None:
    """Of two ranks by what the trace says of the job; in a group of four by its kernel."""
    assert of(gloo_step(0, 530, 900)).bus_bytes == pytest.approx(4000)
    grouped = nccl_step(0)
    grouped["traceEvents"][-1]["args"]["Group size"] = 4
    assert of(grouped).bus_bytes == pytest.approx(1.5 * 2000)


def test_the_slowest_rank_is_named_by_its_lateness_if_one_is_late(two_ranks: Breakdown) -> None:
    slowest = two_ranks.slowest
    assert slowest is not None
    assert (slowest.rank, slowest.why) == (1, "host or link")
    assert slowest.late == pytest.approx(170 * US)
    assert of(gloo_step(0, 530, 900), gloo_step(1, 535, 900)).slowest is None


@pytest.mark.parametrize(
    ("part", "longer"), [("compute", [[0, 250], [260, 660]]), ("input", [[0, 100], [520, 690]])]
)
def test_why_a_rank_is_slow(part: str, longer: list[list[int]]) -> None:
    one, other = (rank_trace(gloo_step(r, i, 900), "t") for r, i in ((0, 530), (1, 700)))
    changed: dict[str, Any] = {part: np.array(longer) * US}
    found = break_down([one, replace(other, **changed)])
    assert found.slowest is not None
    assert found.slowest.why == part


def test_clocks_of_hosts_are_set_by_the_ends_of_collectives(two_ranks: Breakdown) -> None:
    apart = of(gloo_step(0, 530, 900), gloo_step(1, 700, 900, at_us=5e6, host="b"))
    for one, other in zip(apart.ranks, two_ranks.ranks, strict=True):
        assert one.waiting == pytest.approx(other.waiting, abs=1e-9)
        assert one.transfer == pytest.approx(other.transfer, abs=1e-9)


def test_ranks_whose_traces_name_no_host_are_aligned_one_by_one(two_ranks: Breakdown) -> None:
    """As torch 2.11 writes them: whether the ranks share a clock is not known."""
    apart = of(gloo_step(0, 530, 900, host=""), gloo_step(1, 700, 900, at_us=5e6, host=""))
    for one, other in zip(apart.ranks, two_ranks.ranks, strict=True):
        assert one.waiting == pytest.approx(other.waiting, abs=1e-9)
        assert one.transfer == pytest.approx(other.transfer, abs=1e-9)


def test_ranks_of_two_hosts_that_send_nothing_still_have_their_parts() -> None:
    ranks = [rank_trace(gloo_step(r, 530, 900, host=host), "t") for r, host in enumerate("ab")]
    found = break_down([replace(each, collectives=()) for each in ranks])
    assert found.mean("in_flight") == 0.0
    assert found.mean("compute") == pytest.approx(400 * US)


def test_a_gpus_compute_hides_messages() -> None:
    found = of(nccl_step(0), nccl_step(1))
    assert found.on_device
    assert found.mean("compute") == pytest.approx(550 * US)
    assert found.mean("transfer") == pytest.approx(300 * US)  # 600 to 900
    assert found.mean("in_flight") == pytest.approx(400 * US)


def test_ranks_with_other_operations_still_have_their_parts() -> None:
    one, other = (rank_trace(gloo_step(r, 530, 900), "t") for r in range(2))
    found = break_down([one, replace(other, collectives=other.collectives * 2)])
    assert found.collectives == ()
    assert found.mean("transfer") > 0
    assert not found.is_matched


def test_a_kernel_that_begins_after_the_last_mark_of_one_rank_is_still_waited_for() -> None:
    """Rank 1's all-reduce begins 50 us after its mark ends; rank 0's has begun at 500 us."""
    early, late = nccl_step(0), nccl_step(1)
    early["traceEvents"][-1] |= {"ts": 500, "dur": 600}
    late["traceEvents"][-1] |= {"ts": 1050, "dur": 50}
    found = of(early, late)
    assert found.is_matched
    assert found.ranks[0].waiting == pytest.approx(400 * US)  # from 600, when compute ends
    assert found.ranks[0].transfer == 0.0


def test_iterations_of_nothing_but_messages_are_refused() -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    events = [event("user_annotation", "ProfilerStep#0", 0, 1000), event("kernel", name, 0, 1000)]
    with pytest.raises(InvalidInput, match="nothing but messages"):
        of(trace(0, events))


def test_one_trace_a_rank_of_the_same_iterations() -> None:
    with pytest.raises(InvalidInput, match="rank 0 has 2 traces"):
        of(gloo_step(0, 530, 900), gloo_step(0, 530, 900), gloo_step(1, 530, 900))
    one, other = (rank_trace(gloo_step(r, 530, 900), "t") for r in range(2))
    with pytest.raises(InvalidInput, match="different numbers of iterations"):
        break_down([one, replace(other, steps=np.array([[0, 1], [1, 2.0]]))])
    later = json.loads(json.dumps(gloo_step(1, 530, 900)).replace("Step#0", "Step#4"))
    with pytest.raises(InvalidInput, match="rank 0 has ProfilerStep#0, rank 1 has ProfilerStep#4"):
        of(gloo_step(0, 530, 900), later)


def test_kernels_of_nccl_on_a_gpu() -> None:
    """Two ranks of ResNet-50 under FSDP2 that share an H200 (benchmarks.gpu.diagnosed, torch 2.11,
    NCCL 2.28): the profiler's traces, of which what a diagnosis reads is kept."""
    folder = Path(__file__).with_name("nccl_traces")
    traces = [
        json.loads(gzip.decompress((folder / f"fsdp2-{rank}.json.gz").read_bytes()))
        for rank in (0, 1)
    ]
    found = of(*traces)
    assert (found.iterations, found.on_device, found.backend) == (2, True, "nccl")
    # Root, blocks and head are gathered for the forward pass; blocks and head again, backward.
    assert [each.operation for each in found.collectives] == [
        *["all_gather"] * 5,
        "reduce_scatter",
        "all_gather",
        *["reduce_scatter"] * 2,
    ]
    sizes = [each.size_bytes for each in found.collectives]
    assert sizes == [38144, 93993984, 8196000, 8196000, 93993984, 8196000, 38144, 93993984, 38144]
    for rank in found.ranks:
        parts = rank.compute + rank.transfer + rank.waiting + rank.input + rank.python
        assert parts == pytest.approx(rank.iteration)
        assert 0.02 < rank.compute < 0.03  # kernels that overlap count once
        assert rank.transfer > rank.compute


def test_buckets_are_named_once_a_pass_and_the_scripts_own_sums_are_not() -> None:
    a, b, own = (
        CollectiveSeconds(0, "all_reduce", size, 0.0, 0.0, 0.1, 0.1, 1.0) for size in (800, 400, 4)
    )
    gathered = replace(a, operation="all_gather")
    passes = (a, gathered, b, own, a, b)
    named = with_parameters(passes, (800, 400), (("head", "body"), ("stem",)))
    assert [each.parameters for each in named] == [
        *(("head", "body"), (), ("stem",), ()),
        *(("head", "body"), ("stem",)),
    ]
    assert with_parameters(passes, (800,), ()) == passes


def test_the_names_that_ddp_logs_by_number() -> None:
    assert names_of_buckets("2 1, 0", ("a", "b", "c")) == (("c", "b"), ("a",))
    for odd in ("", "2 1", "2 1, 0 3", "2 1, x", "2 1, 0 0"):
        assert names_of_buckets(odd, ("a", "b", "c")) == ()
