from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from autosync.cluster import Cluster, Device
from autosync.cluster.devices import DEVICE_TYPES
from autosync.domain import Profile
from autosync.errors import InvalidInput, NotSupported
from autosync.graph import ModelGraph, Operation, Variable
from autosync.importing import import_module
from autosync.models import bundled
from autosync.profiling import (
    EFFICIENCY,
    LAUNCH_SECONDS,
    estimate_profile,
    measure_profile,
    profile_at_batch,
    profile_from_step_seconds,
    takes_winograd,
    torch_device,
    update_seconds,
)
from tests.domains import chain_graph, domain_of

INPUTS = (torch.randn(16, 64), torch.randint(0, 10, (16,)))


def cross_entropy(
    outputs: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def network() -> nn.Sequential:
    """The middle layer does nearly all of the work."""
    return nn.Sequential(
        nn.Linear(64, 1536), nn.BatchNorm1d(1536), nn.Linear(1536, 1536), nn.Linear(1536, 10)
    )


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    return import_module(network, INPUTS, cross_entropy, name="network", batch_size=16)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """On a busy machine threads that wait for one another take most of an operation's time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class TestEstimate:
    def test_an_operation_takes_the_longer_of_compute_and_memory(self) -> None:
        """Worked by hand. op1 of the chain: 1e6 FLOPs; it moves 4096 in, 256 of weights, 4096
        out = 8448 bytes forward, and 4096 + 2 * 4352 = 12800 backward."""
        chain = chain_graph()
        device = DEVICE_TYPES["cpu"]
        slow = estimate_profile(chain, "cpu", efficiency=0.1)
        assert slow.forward_seconds[1] == pytest.approx(1e6 / (device.peak_flops_per_second * 0.1))
        assert slow.backward_seconds[1] == pytest.approx(2e6 / (device.peak_flops_per_second * 0.1))
        light = replace(
            chain,
            operations=tuple(
                replace(o, forward_flops=0, backward_flops=0) for o in chain.operations
            ),
        )
        moved = estimate_profile(light, "cpu")
        assert moved.forward_seconds[1] == pytest.approx(8448 / device.memory_bytes_per_second)
        assert moved.backward_seconds[1] == pytest.approx(12800 / device.memory_bytes_per_second)

    def test_operations_compute_in_the_type_of_their_variables(self) -> None:
        graph = bundled("bert_base")
        halves = tuple(replace(variable, dtype="bfloat16") for variable in graph.variables)
        half = replace(graph, variables=halves)
        first = next(i for i, o in enumerate(graph.operations) if o.type == "addmm")
        for device, faster in (("a100", 2.0), ("v100", 1.0)):  # a V100 has no units for bfloat16
            whole, lower = (
                estimate_profile(each, device, tf32=True, host_seconds=0.0)
                for each in (graph, half)
            )
            seconds = whole.forward_seconds[first], lower.forward_seconds[first]
            assert seconds[0] == pytest.approx(faster * seconds[1]), device

    def test_matrix_products_of_float32_take_tensor_cores_where_tf32_is_allowed(self) -> None:
        """torch allows it for convolutions by default, and for matrix products on request."""
        for name, type_, change in (("gpt2", "addmm", True), ("resnet50", "convolution", False)):
            graph = bundled(name)
            chosen = [i for i, o in enumerate(graph.operations) if o.type == type_]
            plain, allowed = (
                sum(
                    estimate_profile(graph, "h200", tf32=tf32, host_seconds=0.0).forward_seconds[i]
                    for i in chosen
                )
                for tf32 in (False, True)
            )
            assert (plain > 3 * allowed) == change, name

    def test_a_gpu_waits_for_what_the_host_has_not_asked_for(self) -> None:
        """By hand: four operations of the chain, whose kernels take a launch, 4 us, each. The
        first waits for 40 us; behind it the GPU is 4 us behind, so each other one waits for 36."""
        chain = chain_graph()
        kernels = sum(bool(s) for s in estimate_profile(chain, "h200").forward_seconds)
        profile = estimate_profile(chain, "h200", host_seconds=40e-6)
        expected = [40e-6 + LAUNCH_SECONDS] + [40e-6] * (kernels - 1)
        assert [s for s in profile.forward_seconds if s] == pytest.approx(expected)
        assert profile.backward_seconds[-1] == pytest.approx(40e-6)
        assert "the GPU waits for the host" in profile.note
        busy = bundled("bert_base")  # runs ahead of the host for the most part
        alone = estimate_profile(busy, "v100", host_seconds=0.0)
        asked = estimate_profile(busy, "v100")
        assert alone.compute_seconds <= asked.compute_seconds < 1.05 * alone.compute_seconds
        assert "host" not in asked.note

    def test_it_is_marked_as_an_estimate_that_names_device_and_efficiency(self) -> None:
        profile = estimate_profile(bundled("resnet50"), "t4", efficiency=0.4, slowdown=2)
        assert profile.source == "estimated"
        assert profile.device == "t4"
        assert profile.batch_size == 32
        for word in ("t4", "40%", "2 times slower"):
            assert word in profile.note

    def test_slowdown_slows_everything_alike(self) -> None:
        graph = bundled("resnet50")
        nominal = estimate_profile(graph, "t4")
        slow = estimate_profile(graph, "t4", slowdown=3)
        assert slow.compute_seconds == pytest.approx(3 * nominal.compute_seconds)
        assert slow.update_seconds == pytest.approx(3 * nominal.update_seconds)

    def test_faster_devices_and_higher_efficiency_take_less_time(self) -> None:
        graph = bundled("bert_base")
        seconds = [
            estimate_profile(graph, d, tf32=True).compute_seconds for d in ("t4", "a10g", "a100")
        ]
        assert seconds == sorted(seconds, reverse=True)
        hasty = estimate_profile(graph, "t4", efficiency=0.9).compute_seconds
        assert hasty < seconds[0]

    def test_operations_without_backward_take_no_time_there(self) -> None:
        graph = bundled("bert_base")
        profile = estimate_profile(graph, "v100")
        masks = [i for i, o in enumerate(graph.operations) if o.type == "bernoulli_"]
        assert masks
        assert all(profile.backward_seconds[i] == 0 < profile.forward_seconds[i] for i in masks)

    def test_a_lookup_reads_rows_and_a_sparse_gradient_writes_rows(self) -> None:
        sparse = estimate_profile(bundled("ncf_sparse"), "v100", host_seconds=0.0)
        dense = estimate_profile(bundled("ncf_dense"), "v100", host_seconds=0.0)
        assert sparse.forward_seconds == dense.forward_seconds
        assert dense.backward_seconds[0] > 10 * sparse.backward_seconds[0]
        assert sparse.backward_seconds[0] == LAUNCH_SECONDS  # a few rows take no less
        assert dense.update_seconds > 1000 * sparse.update_seconds

    def test_it_comes_near_published_throughput(self) -> None:
        """Shi et al. 2020 (arXiv 2005.13247), one RTX 2080 Ti, batch 64."""
        for name, measured in (("resnet50", 253.1), ("bert_base", 212.8)):
            graph = bundled(name)
            profile = estimate_profile(graph, "rtx-2080-ti", efficiency=EFFICIENCY)
            seconds = profile.compute_seconds * 64 / graph.batch_size + profile.update_seconds
            rate = 64 / seconds
            assert rate == pytest.approx(measured, rel=0.05)

    def test_convolutions_of_3x3_take_winograds_algorithm_in_float32(self) -> None:
        """ResNet-50 has 16, of which 3 have a stride of 2; VGG-16 has nothing else."""
        for name, count in (("resnet50", 13), ("vgg16", 13), ("bert_base", 0)):
            graph = bundled(name)
            chosen = [o for o in graph.operations if takes_winograd(graph, o)]
            assert len(chosen) == count, name
        graph = bundled("vgg16")
        flops = sum(o.forward_flops + o.backward_flops for o in graph.operations)
        peak_seconds = flops / DEVICE_TYPES["v100"].peak_flops_per_second
        seconds = estimate_profile(graph, "v100", host_seconds=0.0).compute_seconds
        assert peak_seconds / 2.25 < seconds < peak_seconds / EFFICIENCY
        peak_seconds = flops / DEVICE_TYPES["a100"].peak_flops_per_second
        assert estimate_profile(graph, "a100").compute_seconds > peak_seconds / EFFICIENCY

    @pytest.mark.parametrize("efficiency", [0, -1, 1.01, float("nan")])
    def test_absurd_efficiencies_are_refused(self, efficiency: float) -> None:
        with pytest.raises(InvalidInput, match="efficiency"):
            estimate_profile(chain_graph(), "t4", efficiency=efficiency)

    @pytest.mark.parametrize("slowdown", [0, -1, float("inf"), float("nan")])
    def test_absurd_slowdowns_are_refused(self, slowdown: float) -> None:
        with pytest.raises(InvalidInput, match="slowdown"):
            estimate_profile(chain_graph(), "t4", slowdown=slowdown)

    def test_an_unknown_device_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="'t5' is unknown"):
            estimate_profile(chain_graph(), "t5")
        with pytest.raises(InvalidInput, match="'t5' is unknown"):
            update_seconds(chain_graph(), "t5")


class TestStatedStep:
    def test_forward_and_backward_take_the_stated_time(self) -> None:
        profile = profile_from_step_seconds(bundled("resnet50"), 64 / 253.1, "rtx-2080-ti")
        assert profile.compute_seconds == pytest.approx(64 / 253.1)
        assert profile.update_seconds == 0
        assert profile.source == "estimated"
        assert "252.864 ms" in profile.note

    def test_the_shape_is_the_estimates(self) -> None:
        graph = bundled("resnet50")
        scaled = profile_from_step_seconds(graph, 0.5, "t4")
        estimate = estimate_profile(graph, "t4", host_seconds=0.0)
        factor = 0.5 / estimate.compute_seconds
        assert scaled.forward_seconds == pytest.approx(
            [seconds * factor for seconds in estimate.forward_seconds]
        )

    @pytest.mark.parametrize("step_seconds", [0, -1, float("inf"), float("nan")])
    def test_absurd_times_are_refused(self, step_seconds: float) -> None:
        with pytest.raises(InvalidInput, match="step_seconds"):
            profile_from_step_seconds(chain_graph(), step_seconds, "t4")

    def test_seconds_of_a_graph_without_work_are_refused(self) -> None:
        nothing = Operation("idle", "add", 0, 0, 0, has_batch_dimension=True)
        graph = ModelGraph("idle", 1, (nothing,), (Variable("v", (2,)),), (0,), (0,), (0,))
        with pytest.raises(InvalidInput, match="no operation has FLOPs or bytes"):
            profile_from_step_seconds(graph, 0.1, "t4")


class TestMeasurement:
    @pytest.mark.usefixtures("_one_thread")
    def test_it_finds_the_operation_that_does_the_work(self, graph: ModelGraph) -> None:
        profile = measure_profile(network(), INPUTS, cross_entropy, graph, iterations=5)
        assert profile.source == "measured"
        assert profile.device == "cpu"
        assert (profile.batch_size, profile.forward_flops) == (16, graph.forward_flops)
        names = [operation.name for operation in graph.operations]
        both = [
            f + b for f, b in zip(profile.forward_seconds, profile.backward_seconds, strict=True)
        ]
        assert len(both) == len(names)
        seconds = dict(zip(names, both, strict=True))
        assert seconds["2.addmm"] > 5 * seconds["3.addmm"], "it has 150 times the FLOPs"
        assert all(seconds > 0 for seconds in profile.forward_seconds)

    def test_module_and_random_state_are_left_as_they_were(self, graph: ModelGraph) -> None:
        module = network()
        module[1].register_buffer("seen", torch.zeros(()))  # which forward replaces
        module[1].register_forward_pre_hook(lambda part, _: setattr(part, "seen", part.seen + 1))
        module[0].weight.grad = torch.ones(1536, 64)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        state = torch.get_rng_state()
        measure_profile(module, INPUTS, cross_entropy, graph, iterations=1)
        assert torch.equal(torch.get_rng_state(), state)
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert torch.equal(module[0].weight.grad, torch.ones(1536, 64))
        assert module[2].weight.grad is None
        assert not module[0]._forward_hooks

    @pytest.mark.filterwarnings("ignore")  # of torch.compile's own imports
    def test_what_is_compiled_is_timed_operation_by_operation(self, graph: ModelGraph) -> None:
        """The whole step before has compiled it; its modules are not called any more then."""
        module = network()
        module.compile(backend="eager")
        profile = measure_profile(module, INPUTS, cross_entropy, graph, iterations=1)
        assert all(seconds > 0 for seconds in profile.forward_seconds)
        assert module._compiled_call_impl is not None

    def test_operations_of_other_names_share_their_modules_time(self) -> None:
        """The CPU has no fused attention with dropout, and runs its parts."""

        class Attending(nn.Module):
            def __init__(self, dropout: float) -> None:
                super().__init__()
                self.layer, self.dropout = nn.Linear(32, 32), dropout

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.layer(x)
                return nn.functional.scaled_dot_product_attention(
                    y, y, y, None, self.dropout
                ).mean()

        inputs = (torch.randn(2, 4, 16, 32),)
        for dropout in (0.0, 0.1):
            module = Attending(dropout)
            graph = import_module(module, inputs, None, name="attending", batch_size=2)
            profile = measure_profile(module, inputs, None, graph, iterations=1)
            types = [operation.type for operation in graph.operations]
            attention = types.index("scaled_dot_product_attention")
            assert profile.forward_seconds[attention] > 0
            assert profile.backward_seconds[attention] > 0

    def test_what_does_not_belong_together_is_refused(self, graph: ModelGraph) -> None:
        with pytest.raises(InvalidInput, match="not the 8 of graph 'network'"):
            measure_profile(nn.Linear(64, 10), INPUTS, cross_entropy, graph)
        other_batch = tuple(value[:3] for value in INPUTS)
        with pytest.raises(InvalidInput, match="batch size 16"):
            measure_profile(network(), other_batch, cross_entropy, graph)
        with pytest.raises(InvalidInput, match="iterations"):
            measure_profile(network(), INPUTS, cross_entropy, graph, iterations=0)

    def test_a_gpu_of_no_known_type_has_a_way_out(
        self, graph: ModelGraph, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "NVIDIA L20")
        with pytest.raises(NotSupported, match="'NVIDIA L20' is of no known device") as caught:
            measure_profile(network(), INPUTS, cross_entropy, graph, device="cuda:0")
        assert "--trace FILE --device TYPE" in caught.value.remedy

    def test_what_does_not_run_here_is_refused(self, graph: ModelGraph) -> None:
        with torch.device("meta"):
            weightless = network()
        with pytest.raises(NotSupported, match="'meta'"):
            measure_profile(weightless, INPUTS, cross_entropy, graph)
        wrong = (torch.randn(16, 63), INPUTS[1])
        with pytest.raises(NotSupported, match="does not run on this CPU"):
            measure_profile(network(), wrong, cross_entropy, graph)


def test_a_profile_scaled_to_another_device_is_an_estimate() -> None:
    measured = domain_of()
    there = replace(measured.profile, device="v100", source="measured")
    same = replace(measured, profile=there, cluster=of_type(measured.cluster, "v100"))
    assert same.compute_source == "measured"
    assert same.compute_seconds == pytest.approx(there.compute_seconds)
    other = replace(same, cluster=of_type(measured.cluster, "a100"))
    assert other.compute_source == "estimated"
    assert other.compute_seconds < same.compute_seconds


def test_device_types_with_and_without_tf32_compare_by_float32() -> None:
    """A V100 has 15.7 TFLOPS of float32, an A100 19.5, and 156 of TF32 where an H100 has 494."""
    profile = replace(domain_of().profile, device="a100")
    assert profile.factor_on(Device("v100", slowdown=2.0)) == pytest.approx(2 * 19.5 / 15.7)
    assert profile.factor_on(Device("h100")) == pytest.approx(156 / 494)


def of_type(cluster: Cluster, device: str) -> Cluster:
    nodes = [
        replace(node, devices=tuple(replace(each, type=device) for each in node.devices))
        for node in cluster.nodes
    ]
    return replace(cluster, nodes=tuple(nodes))


@pytest.mark.parametrize(
    "name", ["cuda:99", "cuda:0" if not torch.cuda.is_available() else "cuda:98"]
)
def test_a_gpu_that_torch_does_not_see_is_refused_by_name(name: str) -> None:
    with pytest.raises(NotSupported, match=f"torch sees no {name}") as refused:
        torch_device(name)
    assert "Estimate" in refused.value.remedy
    for other in ("tpu", "cuda:x", "mps", "cpu;rm"):
        with pytest.raises(InvalidInput, match="no device is called"):
            torch_device(other)


GRAPH = chain_graph()


def profile_of(
    batch: int, fixed: float = 1e-3, each: float = 1e-4, device: str = "v100"
) -> Profile:
    """Every operation takes `fixed` and `each` an example, backward twice that."""
    forward = (fixed + each * batch,) * len(GRAPH.operations)
    return Profile(device, batch, forward, tuple(2 * s for s in forward), 0.01, "measured")


def test_a_line_is_found_again() -> None:
    wanted = replace(GRAPH, batch_size=64)
    found = profile_at_batch(wanted, [profile_of(8), profile_of(16), profile_of(32)])
    assert found.batch_size == 64
    assert found.source == "estimated"
    assert found.forward_seconds == pytest.approx(profile_of(64).forward_seconds)
    assert found.backward_seconds == pytest.approx(profile_of(64).backward_seconds)
    assert found.update_seconds == 0.01
    assert "batch sizes 8, 16, 32" in found.note
    assert "within 0%" in found.note


def test_no_time_falls_with_the_batch_or_begins_below_zero() -> None:
    wanted = replace(GRAPH, batch_size=64)
    falling = profile_at_batch(wanted, [profile_of(8, 2e-3, 0.0), profile_of(16, 1e-3, 0.0)])
    assert falling.forward_seconds[0] == pytest.approx(1.5e-3)
    steep = [profile_of(8, -4e-4), profile_of(16, -4e-4)]  # 0.4 and 1.2 ms
    one = profile_at_batch(replace(GRAPH, batch_size=1), steep)
    assert one.forward_seconds[0] == pytest.approx((8 * 4e-4 + 16 * 12e-4) / (64 + 256))


def test_profiles_that_do_not_belong_together_are_refused() -> None:
    for profiles, words in (
        ([profile_of(8), profile_of(8)], "two different batch sizes"),
        ([profile_of(8), profile_of(16, device="t4")], "one device"),
        ([profile_of(8), replace(profile_of(16), forward_seconds=(1.0,))], "another number"),
        ([profile_of(8), replace(profile_of(16), backward_seconds=(1.0,))], "another number"),
    ):
        with pytest.raises(InvalidInput, match=words) as refused:
            profile_at_batch(GRAPH, profiles)
        assert refused.value.remedy
