"""Kernels of a graph's shapes: which ones, and that a replay computes them."""

from dataclasses import replace

import pytest
import torch

from autosync.cluster import Backend, Cluster, Device, Node
from autosync.errors import InvalidInput, NotSupported
from autosync.graph import ModelGraph, Operation, Variable
from autosync.models import bundled
from autosync.profiling import forward_bytes
from autosync.trials import gpus
from autosync.trials.contract import Workload
from autosync.trials.launchers import ray_launcher
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.launchers.ray_launcher import RayLauncher, gpus_a_rank, whole_above_one
from autosync.trials.launchers.testbed_launcher import TestbedLauncher, refuse_excess
from autosync.trials.worker.kernels import (
    MOST_ELEMENTS,
    Kernel,
    KernelCompute,
    Product,
    Sweep,
    graph_kernels,
)
from autosync.trials.worker.replay import Replay
from autosync.trials.worker.replay_compute import Stretch
from tests.autosync.trials.strategies import small_domain
from tests.domains import chain_graph, domain_of, grid_cluster

CPU = torch.device("cpu")


def flops(kernels: tuple[Kernel, ...]) -> int:
    return sum(kernel.flops for kernel in kernels if isinstance(kernel, Product))


def rounding(kernels: tuple[Kernel, ...]) -> float:
    """FLOPs by which products of whole rows may miss: half a row of each."""
    products = [kernel for kernel in kernels if isinstance(kernel, Product)]
    return sum(product.times * _row_flops(product) / 2 for product in products)


def _row_flops(product: Product) -> int:
    if product.transposed == "left":  # the batch is what it sums over
        return 2 * product.rows * product.columns
    return 2 * product.inner * product.columns


@pytest.mark.parametrize("model", ["resnet50", "bert_base", "gpt2", "ncf_sparse"])
@pytest.mark.parametrize("load", [1.0, 0.5])
def test_products_have_the_flops_of_their_operations(model: str, load: float) -> None:
    graph = bundled(model)
    for operation, kernels in zip(graph.operations, graph_kernels(graph, load), strict=True):
        forward, backward = operation.forward_flops * load, operation.backward_flops * load
        assert abs(flops(kernels.forward) - forward) <= rounding(kernels.forward), operation
        assert abs(flops(kernels.backward) - backward) <= rounding(kernels.backward), operation


def one_operation(operation: Operation, *shapes: tuple[int, ...]) -> ModelGraph:
    """The operation behind one that computes nothing, but has a variable."""
    first = Operation("first", "embedding", 0, 0, 0, True, (), (0,))
    variables = tuple(Variable(f"v{i}", shape) for i, shape in enumerate(((2,), *shapes)))
    names = tuple(range(1, len(variables)))
    placed = replace(operation, inputs=(0,), variables=names)
    after = (0, *(1 for _ in names))
    order = (*names, 0)
    return ModelGraph("one", 8, (first, placed), variables, (1, 0), order, after)


def test_a_linear_layer_is_three_products_of_its_shapes() -> None:
    operation = Operation("fc", "addmm", 2 * 8 * 64 * 32, 4 * 8 * 64 * 32, 8 * 64 * 4, True)
    kernels = graph_kernels(one_operation(operation, (64, 32), (64,)))[1]
    assert kernels.forward == (Product(8, 32, 64, "float32", "right"),)
    assert kernels.backward == (
        Product(8, 64, 32, "float32", "none"),
        Product(64, 8, 32, "float32", "left"),
    )


def test_a_first_convolution_needs_no_gradient_of_its_input() -> None:
    its_flops = 2 * 4 * 100 * 16 * 3 * 9  # batch 4, 100 positions, 16 x 3 x 3 x 3 weights
    operation = Operation("conv", "convolution", its_flops, its_flops, 25600, True)
    kernels = graph_kernels(one_operation(operation, (16, 3, 3, 3)))[1]
    assert kernels.forward == (Product(400, 27, 16, "float32", "right"),)
    assert kernels.backward == (Product(16, 400, 27, "float32", "left"),)


def test_operations_without_products_move_their_bytes() -> None:
    operation = Operation("relu", "relu", 0, 0, 80_000, True)
    graph = one_operation(operation)
    assert graph_kernels(graph)[1].forward == (Sweep(10_000),)
    moved = forward_bytes(graph, graph.operations[1])
    assert [kernel.moved_bytes for kernel in graph_kernels(graph)[1].forward] == [moved]  # type: ignore[union-attr]
    assert graph_kernels(graph, 0.5)[1].forward == (Sweep(5_000),)


def test_large_operands_are_cut() -> None:
    rows, inner = 1_605_632, 576  # VGG-16's second convolution, as an im2col product
    operation = Operation("conv", "convolution", 2 * rows * inner * 64, 0, 4, True)
    (kernel,) = graph_kernels(one_operation(operation, (64, 64, 3, 3)))[1].forward
    assert isinstance(kernel, Product)
    assert kernel.times == 14
    assert kernel.rows * inner <= 1.01 * MOST_ELEMENTS
    assert kernel.flops == pytest.approx(operation.forward_flops, rel=1e-5)


def test_kernels_run_with_their_stretch_and_share_their_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = chain_graph()
    ran: list[tuple[torch.Size, torch.Size, torch.Size]] = []
    multiply = torch.mm

    def watched(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        ran.append((left.shape, right.shape, out.shape))
        return multiply(left, right, out=out)

    monkeypatch.setattr(torch, "mm", watched)
    compute = KernelCompute(graph, CPU)
    compute.run(Stretch(0.0, (0, 1)))
    assert ran[0] == ((244, 32), (32, 64), (244, 64))
    compute.run(Stretch(0.0, (0,), backward=True))
    assert ran[-2:] == [((244, 64), (64, 32), (244, 32)), ((64, 244), (244, 32), (64, 32))]
    compute.set_batch_factor(0.5)
    compute.run(Stretch(0.0, (0,)))
    assert ran[-1] == ((122, 32), (32, 64), (122, 64))


def test_a_replay_runs_every_operation_once_each_way() -> None:
    class Counting(KernelCompute):
        def run(self, stretch: Stretch) -> None:
            seen.extend((operation, stretch.backward) for operation in stretch.operations)
            super().run(stretch)

    seen: list[tuple[int, bool]] = []
    graph = chain_graph()
    model = Replay(domain_of(graph), 1.0, 0, Counting(graph, CPU))
    model(torch.zeros((), requires_grad=True)).backward()
    assert seen[:6] == [(operation, False) for operation in range(6)]
    assert seen[6:] == [(operation, True) for operation in graph.backward_order]


# --- refusals


@pytest.mark.parametrize("scale", ["byte_scale", "time_scale"])
def test_kernels_are_not_scaled(scale: str) -> None:
    with pytest.raises(InvalidInput, match=rf"{scale} is 0\.5.*compute waited"):
        Workload(small_domain(), compute="kernels", **{scale: 0.5})  # type: ignore[arg-type]


def test_kernels_are_not_slowed_down() -> None:
    slow = Cluster("slow", (Node("10.0.0.1", (Device("cpu", 2, slowdown=2.0),), 1.0, 20.0),))
    with pytest.raises(InvalidInput, match=r"'10\.0\.0\.1'.*slowdown 2"):
        Workload(domain_of(cluster=slow), compute="kernels")


def test_a_gpu_does_not_wait() -> None:
    with pytest.raises(InvalidInput, match=r"leaves a GPU idle.*--compute kernels"):
        Workload(small_domain(), device="cuda")


def test_messages_of_a_gpu_go_as_the_cluster_says() -> None:
    nccl = domain_of(cluster=replace(grid_cluster(), backend="nccl"))
    assert Workload(nccl).backend == "gloo"  # in host memory, whatever it stands for
    assert Workload(nccl, compute="kernels", device="cuda").backend == "nccl"
    assert Workload(small_domain(), compute="kernels", device="cuda").backend == "gloo"


def test_ranks_are_numbered_on_their_host() -> None:
    assert gpus.local_ranks(["a", "a", "b", "a", "b"]) == [0, 1, 0, 2, 1]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_ranks_share_gpus_where_they_may(backend: Backend) -> None:
    hosts = ["here", "here", "there"]
    gpus.refuse_shared_gpus(["x", "y", "z"], hosts, False, backend)
    gpus.refuse_shared_gpus(["", "", ""], hosts, False, backend)  # in host memory
    gpus.refuse_shared_gpus(["x", "y", "x"], hosts, True, backend)
    with pytest.raises(NotSupported, match=r"ranks 0 and 2 share GPU x.*--share-gpus"):
        gpus.refuse_shared_gpus(["x", "y", "x"], hosts, False, backend)


def test_a_machine_with_fewer_gpus_than_ranks_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    workload = Workload(domain_of(cluster=grid_cluster(2)), compute="kernels", device="cuda")
    for launcher in (LocalLauncher(), TestbedLauncher()):
        with pytest.raises(NotSupported, match=r"2 ranks would share 1 GPU of .*--share-gpus"):
            launcher.open(workload)
    with LocalLauncher(share_gpus=True).open(workload) as pool:
        assert pool.mps is not None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with LocalLauncher().open(workload) as pool:
        assert pool.mps is None


def test_nccl_takes_ranks_on_one_gpu_from_hosts_of_their_own() -> None:
    gpus.refuse_shared_gpus(["x", "x"], ["here", "here"], True, "gloo")
    with pytest.raises(NotSupported, match=r"ranks 0 and 1 share GPU x.*'here' for both"):
        gpus.refuse_shared_gpus(["x", "x"], ["here", "here"], True, "nccl")


def test_launchers_refuse_what_they_cannot_give() -> None:
    pairs = domain_of(cluster=replace(grid_cluster(1, 2), backend="nccl"))
    workload = Workload(pairs, compute="kernels", device="cuda")
    with pytest.raises(NotSupported, match=r"has 2 GPUs: NCCL joins.*one GPU each"):
        TestbedLauncher().open(workload)
    fast = Workload(domain_of(cluster=grid_cluster(4, gbps=25.0)), compute="kernels")
    with pytest.raises(NotSupported, match=r"100\.0 Gbit/s.*launcher local, or compute waited"):
        refuse_excess(fast, cores=16)
    refuse_excess(fast, cores=25)
    scaled = Workload(fast.domain, byte_scale=0.5)
    with pytest.raises(InvalidInput, match=r"50\.0 Gbit/s.*byte scale 0\.5.*smaller byte scale"):
        refuse_excess(scaled, cores=2)


def test_gpus_that_ray_reserves_for_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = grid_cluster(2, 3)
    computing = Workload(domain_of(cluster=cluster), compute="kernels", device="cuda")
    alone, sharing = RayLauncher("head:1"), RayLauncher("head:1", share_gpus=True)

    def reserved(launcher: RayLauncher, *gpus: float) -> float:
        there = dict(zip("ab", gpus, strict=True))
        monkeypatch.setattr(ray_launcher, "gpus_of_nodes", lambda: there)
        return gpus_a_rank(launcher, computing, ["a", "b"])

    assert gpus_a_rank(alone, Workload(domain_of(cluster=cluster)), ["a", "b"]) == 0
    assert reserved(alone, 1, 3) == 1  # and Ray says that it has not so many
    assert reserved(sharing, 3, 8) == 1
    assert reserved(sharing, 3, 1) == 0.3333
    assert reserved(sharing, 2, 3) == 0.5  # two ranks on one GPU, one on another
    assert [whole_above_one(gpus) for gpus in (0.9999, 1.0, 1.5)] == [0.9999, 1.0, 2.0]
    with pytest.raises(NotSupported, match=r"'10\.77\.0\.2' has no GPU"):
        reserved(sharing, 1, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    with pytest.raises(NotSupported, match=r"torch \S+ sees no GPU.*--compute-device cpu"):
        gpus.refuse_without_gpu()
