"""Trials of placed modules by replay: bytes that are dealt, seconds that ranks take, and values
that are whole again."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from autosync.bundle import Bundle, make_bundle
from autosync.domain import Domain
from autosync.extensions.placement.document import PlacedModules, evenly, in_proportion
from autosync.extensions.placement.proposals import with_placement
from autosync.extensions.placement.replayed_passes import PlacedPasses
from autosync.extensions.placement.row_exchange import RowExchange, RowRoute
from autosync.runtime.execution.execution_trace import SHORTEST_WAIT_SECONDS
from autosync.search.designs.known_designs import all_reduce_5mb
from autosync.trials.contract import TrialRequest, Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.worker.replay_compute import Stretch, WaitedCompute
from tests.autosync.trials.contract_suite import assert_failed
from tests.autosync.trials.strategies import ddp
from tests.placed_models import LAYERS, OUTPUT_BYTES, heavy_layers

PLACEMENTS: dict[str, PlacedModules] = {
    "one device": (evenly("layer1", [1]),),
    "by speed": (in_proportion("layer3", [0, 1], [1.0, 3.0]),),
    "both": (in_proportion("layer0", [0, 1], [3.0, 1.0]), evenly("layer2", [0])),
}


def placed(where: Domain, placement: PlacedModules) -> Bundle:
    return make_bundle(with_placement(all_reduce_5mb(where), where, placement), where)


@pytest.fixture(scope="module", params=[1.0, 0.125])
def pool(request: pytest.FixtureRequest) -> Iterator[ProcessPool]:
    with LocalLauncher(repeats=0).open(Workload(heavy_layers(), byte_scale=request.param)) as made:
        yield made


def test_placed_replays_run_beside_ddp(pool: ProcessPool) -> None:
    """One trial's placement is off in the next; that replicas end equal is checked by the pool."""
    where = heavy_layers()
    cases = {"ddp": ddp(where)}
    cases |= {name: placed(where, placement) for name, placement in PLACEMENTS.items()}
    cases |= {"ddp again": ddp(where), "again": placed(where, PLACEMENTS["one device"])}
    for key, bundle in cases.items():
        result = pool.run(TrialRequest(key, bundle, warmup=1, iterations=3, record=True))
        assert result.error is None, (key, result.error)


def test_ranks_record_messages_by_their_place_in_the_whole_plan() -> None:
    """Each rank has a part in one of the last two messages, rank 2 in both."""
    where = heavy_layers((1.0, 1.0, 1.0))
    bundle = placed(where, (evenly("layer1", [0, 2]), evenly("layer2", [1, 2])))
    places = {
        message.teams: index
        for index, message in enumerate(bundle.plan.messages)
        if len(bundle.plan.teams[message.teams][0]) == 2
    }
    by_ranks = {bundle.plan.teams[code][0]: index for code, index in places.items()}
    with LocalLauncher(repeats=0).open(Workload(where)) as pool:
        request = TrialRequest("recorded", bundle, warmup=1, iterations=3, record=True)
        timeline = pool.run(request).timeline
    assert timeline is not None
    found = [set(rank.messages.message) for rank in timeline.ranks if rank.messages is not None]
    shared = set.intersection(*found)
    assert shared
    assert [rank - shared for rank in found] == [
        {by_ranks[0, 2]},
        {by_ranks[1, 2]},
        {by_ranks[0, 2], by_ranks[1, 2]},
    ]


def test_deals_are_recorded_as_messages_and_not_as_compute(pool: ProcessPool) -> None:
    """Half of the batch goes to rank 1 and comes back, as samples and as gradients; and once more
    in the forward pass after it."""
    where = heavy_layers()
    bundle = placed(where, PLACEMENTS["one device"])
    request = TrialRequest("dealt", bundle, warmup=1, iterations=3, record=True)
    timeline = pool.run(request).timeline
    assert timeline is not None
    forward, backward = ("all_gather", "all_to_all", "all_to_all"), ("all_to_all",) * 2
    there = (16, OUTPUT_BYTES, 0, OUTPUT_BYTES, 0, 16, OUTPUT_BYTES, 0)
    back = (16, 0, OUTPUT_BYTES, 0, OUTPUT_BYTES, 16, 0, OUTPUT_BYTES)
    for rank, sent in zip(timeline.ranks, (there, back), strict=True):
        deals, compute = rank.deals, rank.compute
        assert deals is not None
        assert deals.operation == forward + backward + forward
        assert deals.sent_bytes == sent
        spans = zip(compute.phase, compute.start_seconds, compute.stop_seconds, strict=True)
        computing = [(begun, ended) for phase, begun, ended in spans if phase != "wait"]
        for start, stop in zip(deals.start_seconds, deals.stop_seconds, strict=True):
            beside = sum(max(0.0, min(stop, e) - max(start, b)) for b, e in computing)
            assert beside <= SHORTEST_WAIT_SECONDS


def test_plans_without_placements_record_no_deals(pool: ProcessPool) -> None:
    bundle = make_bundle(all_reduce_5mb(heavy_layers()), heavy_layers())
    timeline = pool.run(TrialRequest("plain", bundle, 1, 3, record=True)).timeline
    assert timeline is not None
    assert [rank.deals for rank in timeline.ranks] == [None, None]


@dataclass(frozen=True)
class NotedExchange(RowExchange):
    """Of a rank that is alone: deals are noted."""

    moved: list[RowRoute] = field(default_factory=list)
    gathered: list[Sequence[int]] = field(default_factory=list)

    def move(self, rows: Any, route: RowRoute) -> Any:
        assert len(rows) == sum(route.sent)
        self.moved.append(route)
        return torch.empty(sum(route.received), dtype=torch.uint8)

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        self.gathered.append(numbers)
        return []


def played(
    rank: int, placement: PlacedModules, shares: tuple[float, ...], byte_scale: float
) -> tuple[dict[tuple[int, bool], float], NotedExchange]:
    """A forward and a backward pass, and a plain forward pass: the seconds of every operation,
    forward and backward (True), and what was dealt."""
    seconds: defaultdict[tuple[int, bool], float] = defaultdict(float)
    operations = range(LAYERS)
    compute, exchange = WaitedCompute(), NotedExchange(None, rank, shares)
    passes = PlacedPasses(placement, exchange, heavy_layers(), byte_scale)

    def run(operation: int, backward: bool) -> None:
        def noted(_: WaitedCompute, waited_seconds: float) -> None:
            seconds[operation, backward] += waited_seconds

        patched.setattr(WaitedCompute, "wait", noted)
        compute.run(Stretch(2e-3 if backward else 1e-3, (operation,), backward))

    with pytest.MonkeyPatch.context() as patched:
        compute.division = passes
        for operation in operations:
            run(operation, backward=False)
        for operation in reversed(operations):
            run(operation, backward=True)
        compute.division = None
        for operation in operations:
            run(operation, backward=False)
    return seconds, exchange


@pytest.mark.parametrize("byte_scale", [1.0, 0.25])
def test_half_the_batch_travels_to_one_device_and_back(byte_scale: float) -> None:
    """Of two ranks: samples in, samples out, gradients in, gradients out."""
    ranks = [played(rank, PLACEMENTS["one device"], (0.5, 0.5), byte_scale) for rank in range(2)]
    own = int(OUTPUT_BYTES * byte_scale)
    inward, outward = RowRoute((0, own), (0, 0)), RowRoute((0, 0), (0, own))
    first, second = (exchange for _, exchange in ranks)
    assert first.moved == [inward, outward, inward, outward]
    assert second.moved == [
        RowRoute((0, own), (own, own)),
        RowRoute((own, own), (0, own)),
        RowRoute((0, own), (own, own)),
        RowRoute((own, own), (0, own)),
    ]
    assert len(first.gathered) == len(second.gathered) == 1


def test_operations_take_a_ranks_own_share_of_them() -> None:
    placement = (in_proportion("layer1", [0, 1], [3.0, 1.0]), evenly("layer2", [1]))
    for rank, (share, whole) in enumerate(((0.75, 0.0), (0.25, 1.0))):
        replica = (0.25, 0.75)[rank]
        seconds = played(rank, placement, (0.25, 0.75), 1.0)[0]
        backward = [seconds[operation, True] for operation in range(LAYERS)]
        assert backward == pytest.approx(
            [2e-3, 2e-3 * share / replica, 2e-3 * whole / replica, 2e-3]
        )
        forward = [seconds[operation, False] for operation in range(LAYERS)]  # the last is plain
        assert forward[0] == pytest.approx(2e-3)
        assert forward[1] == pytest.approx(1e-3 + 1e-3 * share / replica)


def test_kernels_are_refused_on_every_rank() -> None:
    where = heavy_layers()
    workload = Workload(where, compute="kernels")
    with LocalLauncher(repeats=0).open(workload) as pool:
        refused = pool.run(TrialRequest("kernels", placed(where, PLACEMENTS["by speed"])))
        assert_failed(refused, "refused", "runs kernels")
        again = pool.run(TrialRequest("ddp", ddp(where), warmup=1, iterations=3))
        assert again.error is None
