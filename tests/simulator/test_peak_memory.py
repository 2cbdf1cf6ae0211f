"""Memory by hand, and what does not fit."""

from dataclasses import replace
from itertools import count
from typing import get_args

import numpy as np
import pytest

from autosync.cluster import Backend, Device
from autosync.domain import Domain, Optimizer
from autosync.errors import InvalidStrategy
from autosync.extensions.staleness.document import late_by
from autosync.graph import ITEM_BYTES, DType, Operation
from autosync.plan import PlanTable
from autosync.population import Population, concatenate, encode
from autosync.search.designs.design_table import hand_designed, torch_designs
from autosync.search.designs.known_designs import ddp, zero1
from autosync.search.designs.torch_engines import fsdp2, zero2
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.explanation import explain
from autosync.simulator.memory.live_tensors import activation_curve, storages_of
from autosync.simulator.memory.memory_check import check_memory, fitting_rows
from autosync.simulator.memory.peak_memory import device_memory_bytes, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import (
    EXACT,
    AllReduce,
    Encoding,
    ParameterServer,
    ReduceScatter,
    Schedule,
    Strategy,
)
from tests.domains import chain_graph, domain_of, grid_cluster, layered_graph
from tests.simulator.worked_examples import cluster_of, on_devices, strategy_of

MEGABYTE = (250_000,)
ADAM = Optimizer("adamw", True, 2)


def planned(domain: Domain, *strategies: Strategy) -> tuple[PlanTable, Population]:
    population = encode(list(strategies), domain)
    return compile_plans_fast(population, domain), population


def four(memory_gb: float | None = None) -> Domain:
    """Four variables of a megabyte on four CPUs; Adam."""
    graph = chain_graph((MEGABYTE,) * 4)
    domain = domain_of(graph, cluster_of(), optimizer=ADAM)
    return on_devices(domain, Device("cpu", memory_gb=memory_gb))


def peaks_mb(domain: Domain, strategy: Strategy) -> list[float]:
    """Of each rank."""
    (peaks,) = memory_of(domain).peak_bytes(*planned(domain, strategy))
    return [float(peak) / 1e6 for peak in peaks]


def near(*megabytes: float) -> object:
    """The last backward has all gradients; activations are then two outputs' worth or less."""
    return pytest.approx(list(megabytes), abs=2 * 4 * 4096 / 1e6)


def test_activations_of_a_chain() -> None:
    # Outputs of 4 KiB. Forward keeps what the next operation multiplies: at its end all four live.
    # Backward of the last one holds the three inputs that were kept, and makes one's gradient.
    held = activation_curve(chain_graph((MEGABYTE,) * 4)).held
    assert held[0].tolist() == [0.0] * 8
    assert (held[1] / 4096).tolist() == [1, 2, 3, 4, 4, 4, 3, 1]


def test_an_operation_in_place_has_its_inputs_storage_and_keeps_its_result() -> None:
    chain = chain_graph((MEGABYTE,) * 4)
    middle = replace(chain.operations[1], type="relu_", variables=())
    pointwise = replace(chain, operations=(chain.operations[0], middle, *chain.operations[2:]))
    held = activation_curve(pointwise).held[1] / 4096
    # relu_ adds no storage; its result is what the third operation multiplies.
    assert held.tolist() == [1, 1, 2, 3, 3, 3, 3, 1]


def test_on_a_gpu_a_mask_of_dropout_takes_a_byte_an_element_of_any_type() -> None:
    chain = chain_graph((MEGABYTE,) * 3)
    for dtype in get_args(DType):
        drawn = replace(chain.operations[1], type="bernoulli_", variables=(), dtype=dtype)
        graph = replace(chain, operations=(chain.operations[0], drawn, chain.operations[2]))
        on_gpu, on_cpu = (storages_of(graph, [True] * 3, gpu) for gpu in (True, False))
        assert on_gpu.read_bytes[1] == 4096 / ITEM_BYTES[dtype]
        assert on_cpu.read_bytes[1] == 4096


def test_a_gradient_that_an_addition_passes_on_is_one_storage() -> None:
    def graph_with(kind: str) -> list[float]:
        chain = chain_graph((MEGABYTE,) * 3)
        joined = Operation("join", kind, 0, 0, 4096, True, (0, 1))
        operations = (*chain.operations[:2], joined, replace(chain.operations[2], inputs=(2,)))
        graph = replace(
            chain, operations=operations, backward_order=(3, 2, 1, 0), gradient_after=(0, 1, 3)
        )
        found: list[float] = (activation_curve(graph).held[1] / 4096).tolist()
        return found

    added, unknown = graph_with("add"), graph_with("unheard_of")
    assert added[5] == unknown[5] - 4  # two kept inputs less, the result, and one gradient less
    assert max(added) < max(unknown)


def test_the_peak_adds_up_by_method() -> None:
    domain = four()
    # Values 4, buffer 4, state 8; Adam's step takes two temporaries of the largest variable.
    assert peaks_mb(domain, strategy_of(domain, lambda v: AllReduce(0))) == near(*[18.0] * 4)
    # Torch's DDP keeps gradients beside its buckets.
    ddp = strategy_of(domain, lambda v: AllReduce(0), Schedule(order="ddp"))
    assert peaks_mb(domain, ddp) == near(*[22.0] * 4)
    # Cut into two messages, a variable's gradient is no view of a buffer.
    sliced = strategy_of(domain, AllReduce, Schedule(slice_bytes=500_000))
    assert peaks_mb(domain, sliced) == near(*[22.0] * 4)
    # A quarter of the state, and of a flat copy; what an all-to-all brings lies apart.
    sharded = strategy_of(domain, lambda v: ReduceScatter(0, True))
    assert peaks_mb(domain, sharded) == near(*[4 + 4 + 2 + 1 + 4 + 2.0] * 4)
    # The owner has all state, a flat copy, and what three others send.
    owned = strategy_of(domain, lambda v: ParameterServer(1, 0))
    assert peaks_mb(domain, owned) == near(10.0, 10.0 + 8 + 4 + 12, 10.0, 10.0)


def test_every_rank_holds_frozen_parameters() -> None:
    plain = four()
    adapters = replace(plain, graph=replace(plain.graph, frozen_bytes=5_000_000))
    reduced = strategy_of(plain, lambda v: AllReduce(0))
    for strategy in (reduced, strategy_of(plain, lambda v: ReduceScatter(0, True))):
        more = [each + 5.0 for each in peaks_mb(plain, strategy)]
        assert peaks_mb(adapters, strategy) == pytest.approx(more)
    # Values 4, gradients 4, state 8; two temporaries of the largest variable.
    assert memory_of(plain).alone_bytes() == 18e6
    assert memory_of(adapters).alone_bytes() == 23e6


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_gpu_updates_owned_and_sharded_values_message_by_message(backend: Backend) -> None:
    """What gloo receives for it is in host memory."""
    domain = domain_of(four().graph, cluster_of(backend=backend), optimizer=ADAM)
    domain = on_devices(domain, Device("t4"))
    # Values 4, buffers 4, state 8; Adam's step has one more tensor of every variable at once.
    assert peaks_mb(domain, strategy_of(domain, AllReduce)) == near(*[20.0] * 4)
    # A quarter of the state, and of a flat copy; a step takes less than the last gradient does.
    sharded = strategy_of(domain, lambda v: ReduceScatter(v, True))
    assert peaks_mb(domain, sharded) == near(*[4 + 4 + 2 + 1 + 1.0] * 4)
    assert peaks_mb(domain, strategy_of(domain, lambda v: ParameterServer(v, v))) == near(
        *[4 + 4 + 2 + 1 + 1.0] * 4
    )
    # All of it in one message is updated in one call, at its owner alone.
    owned = strategy_of(domain, lambda v: ParameterServer(1, 0))
    assert peaks_mb(domain, owned) == near(9.0, 4 + 4 + 8 + 4 + 4.0, 9.0, 9.0)


@pytest.mark.parametrize(("dtype", "kept_mb"), [("float32", 4.0), ("bfloat16", 8.0)])
def test_powersgd_keeps_its_error_in_float32(dtype: DType, kept_mb: float) -> None:
    """Of a smaller type also the gradient with the error, which is no buffer of float32 then."""
    graph = chain_graph(((1000, 250),) * 4)
    variables = tuple(replace(each, dtype=dtype) for each in graph.variables)
    domain = domain_of(replace(graph, variables=variables), cluster_of(), optimizer=ADAM)
    packed = strategy_of(domain, lambda v: AllReduce(v, encoding=Encoding("powersgd", 2)))
    plain = peaks_mb(domain, strategy_of(domain, AllReduce))
    factors_mb = 4 * 2 * (1000 + 250) * 4 / 1e6
    more_mb = kept_mb + factors_mb
    assert peaks_mb(domain, packed) == pytest.approx([each + more_mb for each in plain])


def test_buffers_of_stale_updates_add_to_the_peak() -> None:
    domain = four()
    # Values 4, state 8, gradients 4 and Adam's 2, values before a step 4, updates and answers of
    # two iterations; at the owner its own values, and an update and an answer for three others.
    owned = strategy_of(domain, lambda v: ParameterServer(1, 0)).carrying(*late_by(1))
    assert peaks_mb(domain, owned) == near(38.0, 38.0 + 4 + 2 * 3 * 4, 38.0, 38.0)


def test_a_batch_share_counts_with_its_activations() -> None:
    domain = four()
    plans, population = planned(domain, strategy_of(domain, AllReduce))
    memory = memory_of(domain)
    wide = [memory.peak_bytes(plans, population, scale)[0, 0] for scale in (100.0, 10_000.0)]
    assert wide[1] - wide[0] == pytest.approx(9900 * 4 * 4096, rel=0.05)


def test_ranks_whose_device_has_less_memory_are_named() -> None:
    domain = four()
    assert device_memory_bytes(domain).tolist() == [float("inf")] * 4
    assert device_memory_bytes(on_devices(domain, Device("t4"))).tolist() == [16e9] * 4
    nodes = tuple(
        replace(node, devices=(Device("cpu", memory_gb=1.0 if i else 0.001),))
        for i, node in enumerate(domain.cluster.nodes)
    )
    domain = replace(domain, cluster=replace(domain.cluster, nodes=nodes))
    assert device_memory_bytes(domain) == pytest.approx([1e6, 1e9, 1e9, 1e9])
    assert explain(domain, strategy_of(domain, AllReduce)).ranks_out_of_memory == (0,)


def test_a_strategy_that_does_not_fit_is_refused_with_the_ways_out() -> None:
    check_memory(strategy_of(four(), AllReduce), four())
    tight = four(memory_gb=0.0175)  # between zero1's 17 MB and an all-reduce's 18
    check_memory(strategy_of(tight, lambda v: ReduceScatter(0, True)), tight)
    with pytest.raises(InvalidStrategy, match=r"rank 0 needs 0\.02 GB") as refused:
        check_memory(strategy_of(tight, lambda v: AllReduce(0)), tight)
    assert "zero1" in refused.value.remedy
    assert "fits" in refused.value.remedy
    assert "Devices of 0.02 GB" in refused.value.remedy
    assert "checkpoints" not in refused.value.remedy  # it would not fit without activations


def test_a_smaller_batch_is_named_where_it_fits() -> None:
    graph = four().graph
    wide = tuple(replace(o, output_bytes=10_000_000) for o in graph.operations)
    domain = replace(four(memory_gb=0.030), graph=replace(graph, operations=wide))
    with pytest.raises(InvalidStrategy) as refused:
        check_memory(strategy_of(domain, AllReduce), domain)
    # 16 MB of values, buffer and state, a gradient of 1 MB, and 5 MB of outputs an example.
    assert "at a batch size of 2 a replica (now 8)" in refused.value.remedy
    assert "checkpoints are not counted" in refused.value.remedy


def test_a_population_is_sifted() -> None:
    tight = four(memory_gb=0.0175)
    strategies = [
        strategy_of(tight, lambda v: AllReduce(0)),
        strategy_of(tight, lambda v: ReduceScatter(0, True)),
    ]
    assert fitting_rows(tight, encode(strategies, tight)).tolist() == [1]
    loose = four()
    assert fitting_rows(loose, encode(strategies, loose)).tolist() == [0, 1]


def mixed() -> tuple[Domain, Population, PlanTable]:
    """Drawn strategies of all kinds, named ones and torch's, of four variables, one sparse."""
    graph = chain_graph(((64, 32), (4000, 16), (128, 64), (128,)), sparse=(1,), factor_rows=4)
    domain = domain_of(graph, grid_cluster(2, 2), optimizer=ADAM)
    space = Space(encodings=(EXACT, Encoding("bf16"), Encoding("powersgd", 2)))
    drawn = sample(domain, space, 0, 64, seed=3)
    named = [*hand_designed(domain, space), *torch_designs(domain, space)]
    population = concatenate([drawn, encode([strategy for _, strategy in named], domain)])
    return domain, population, compile_plans_fast(population, domain)


def test_strategies_take_together_what_each_takes_alone() -> None:
    domain, population, plans = mixed()
    memory = memory_of(domain)
    together = memory.peak_bytes(plans, population)
    assert together.shape == (len(population), 4)
    assert len(np.unique(together)) > 50
    for index in range(len(population)):
        alone = population.take([index])
        (peaks,) = memory.peak_bytes(compile_plans_fast(alone, domain), alone)
        assert together[index] == pytest.approx(peaks)


def test_moments_of_a_strategy_rise_to_its_peak() -> None:
    domain, population, plans = mixed()
    memory = memory_of(domain)
    peaks = memory.peak_bytes(plans, population)
    own = np.flatnonzero(population.engine == 0).tolist()
    for row, held in zip(own, memory.moment_bytes(plans, population, own), strict=True):
        assert held.max(axis=1) == pytest.approx(peaks[row])


def test_gradients_of_cut_variables_are_there_until_the_next_are_packed() -> None:
    domain = four()
    group = count()
    cut = strategy_of(domain, lambda v: AllReduce(next(group)), parts=2)
    held = []
    for several in (domain, replace(domain, accumulate=3)):
        for strategy in (strategy_of(domain, lambda v: AllReduce(v)), cut):
            (moments,) = memory_of(several).moment_bytes(*planned(several, strategy), [0])
            held.append(moments[:, :-1] / 1e6)
    whole, parts, added_up, added_up_parts = held
    assert parts - whole == pytest.approx(np.full(whole.shape, 4.0))
    assert added_up - whole == pytest.approx(np.full(whole.shape, 4.0))
    assert added_up_parts - whole == pytest.approx(np.full(whole.shape, 8.0))


def test_sharded_strategies_stand_among_the_others() -> None:
    graph = layered_graph(((1000, 250),) * 6)
    domain = domain_of(graph, grid_cluster(4), optimizer=ADAM)
    strategies = [ddp(domain), fsdp2(domain), ddp(domain), zero2(domain), fsdp2(domain)]
    plans, population = planned(domain, *strategies)
    peaks = memory_of(domain).peak_bytes(plans, population)[:, 0]
    assert peaks[0] == peaks[2]
    assert peaks[1] == peaks[4]
    assert max(peaks[1], peaks[3]) < peaks[0]
    assert peaks[1] != peaks[3]


def test_a_gradient_that_is_made_twice_passes_beside_the_first() -> None:
    """A tied variable: both makings count, whether a bucket holds its gradient or a tensor."""
    chain = chain_graph((MEGABYTE,) * 3)
    tied = replace(chain.operations[0], type="embedding", variables=(0, 2))
    operations = (tied, *chain.operations[1:])
    graph = replace(
        chain, operations=operations, gradient_order=(1, 2, 0), gradient_after=(0, 1, 0)
    )
    domain = domain_of(graph, cluster_of(), optimizer=Optimizer("sgd", True, 0))
    few = 3 * 4 * 4096 / 1e6
    plain = planned(domain, strategy_of(domain, lambda v: AllReduce(0)))
    # Values 3, buffer 3; at the end of backward the last gradient, and those of the tied one, which
    # autograd adds up before it hands them over: the first, a view, the second and their sum.
    (peaks,) = memory_of(domain).peak_bytes(*plain)
    assert peaks / 1e6 == pytest.approx([10.0] * 4, abs=few)
    (held,) = memory_of(domain).moment_bytes(*plain, [0])
    assert held.max(axis=1) == pytest.approx(peaks)
    kept = planned(domain, strategy_of(domain, lambda v: AllReduce(0), Schedule(order="ddp")))
    # Torch's DDP keeps three gradients beside the buffer; the second making and the sum pass.
    (peaks,) = memory_of(domain).peak_bytes(*kept)
    assert peaks / 1e6 == pytest.approx([11.0] * 4, abs=few)
    (held,) = memory_of(domain).moment_bytes(*kept, [0])
    assert held.max(axis=1) == pytest.approx(peaks)


LAYER = (1000, 250)
LAYERS = 10


def of(memory_gb: float | None = None, nccl: bool = False) -> Domain:
    """Ten blocks of a megabyte and a root of two, on four ranks; Adam. Outputs take 32 KiB."""
    cluster = replace(grid_cluster(4), backend="nccl" if nccl else "gloo")
    domain = domain_of(layered_graph((LAYER,) * (LAYERS + 2)), cluster, optimizer=ADAM)
    return on_devices(domain, Device("cpu", memory_gb=memory_gb))


def peak_mb(strategy: Strategy, domain: Domain) -> float:
    (peak,) = set(peaks_mb(domain, strategy))
    return peak


def test_zero3_holds_parts_the_root_and_a_few_units() -> None:
    domain = of()
    # Parts of 12 MB over 4: values 3 and Adam's 6. When the last block but one begins its backward:
    # parts of eight blocks' gradients (2), the buffer of the last reduction (1), the root's values
    # (2), its own (1), the last block's buffer and gloo's copy (2), two gradients (2).
    assert peak_mb(fsdp2(domain), domain) == pytest.approx(9 + 2 + 1 + 2 + 1 + 2 + 2, abs=0.1)


def test_zero2_holds_all_values_from_forward_to_backward() -> None:
    domain = of()
    # Values of 12 MB at the end of the forward pass, with the last unit's buffer.
    least = 9 + 12
    assert least < peak_mb(zero2(domain), domain) < least + 5


def test_sharding_more_takes_less() -> None:
    domain = of(nccl=True)
    order = [peak_mb(make(domain), domain) for make in (fsdp2, zero2, zero1, ddp)]
    assert order == sorted(order)
    assert order[0] < order[3] / 3


def test_a_strategy_that_does_not_fit_names_fsdp2_as_a_way_out() -> None:
    tight = of(memory_gb=0.025)
    strategies = [ddp(tight), fsdp2(tight), zero2(tight)]
    assert fitting_rows(tight, encode(strategies, tight)).tolist() == [1, 2]
    check_memory(fsdp2(tight), tight)
    with pytest.raises(InvalidStrategy) as refused:
        check_memory(ddp(tight), tight)
    assert "parameters in shards as well (fsdp2)" in refused.value.remedy
    assert "and fits" in refused.value.remedy
