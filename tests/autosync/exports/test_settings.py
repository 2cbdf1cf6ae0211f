"""Designs that frameworks can run, and those that they cannot: a plain no that says why."""

from dataclasses import replace
from typing import Any

import pytest

from autosync.domain import Domain, Optimizer
from autosync.errors import InvalidStrategy, NotSupported
from autosync.exports import EXPORTS, settings_for
from autosync.exports.deepspeed import zero_buckets
from autosync.exports.settings import FrameworkName, FrameworkSettings
from autosync.extensions.staleness.document import Staleness
from autosync.graph import Variable
from autosync.search.designs import known_designs, torch_engines
from autosync.strategy import AllReduce, Encoding, ReduceScatter, Replica, Schedule, Strategy
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import strategy_of

MODEL = (
    ("embed.weight", (400, 64)),
    ("block.norm", (64,)),
    ("block.inner.weight", (256, 64)),
    ("block.inner.bias", (256,)),
    ("head.weight", (400, 256)),
    ("scale", (1,)),
)
TWO_NODES = grid_cluster(2, 2)


def model_domain(shapes: tuple[tuple[str, tuple[int, ...]], ...] = MODEL) -> Domain:
    variables = tuple(Variable(name, shape) for name, shape in shapes)
    graph = chain_graph(tuple(shape for _, shape in shapes))
    return domain_of(replace(graph, variables=variables), TWO_NODES)


DOMAIN = model_domain()


def grouped(*groups: int, encoding: Encoding | None = None) -> Strategy:
    return strategy_of(DOMAIN, lambda v: AllReduce(groups[v], encoding=encoding or Encoding()))


def sharded(*groups: int, schedule: Schedule | None = None) -> Strategy:
    return strategy_of(DOMAIN, lambda v: ReduceScatter(groups[v], sharded_update=True), schedule)


def exported(framework: FrameworkName, strategy: Strategy) -> FrameworkSettings:
    found = settings_for(framework, strategy, DOMAIN)
    compile(found.snippet, framework, "exec")
    assert found.strategy_id == strategy.id
    return found


def why_not(framework: FrameworkName, strategy: Strategy) -> str:
    with pytest.raises(NotSupported) as caught:
        settings_for(framework, strategy, DOMAIN)
    assert caught.value.thing
    assert "autosync.distribute" in caught.value.remedy
    return caught.value.message


def test_autosync_itself_runs_all() -> None:
    for builder in (known_designs.dear, known_designs.ps_one_server, known_designs.ddp):
        assert "autosync.distribute" in exported("autosync", builder(DOMAIN)).snippet
    lossy = exported("autosync", grouped(*range(6), encoding=Encoding("bf16")))
    assert "allow_lossy=True" in lossy.snippet


def test_ddp_itself_is_ddp() -> None:
    found = exported("ddp", known_designs.ddp(DOMAIN))
    assert found.deviations == ()
    assert found.settings == {
        "DistributedDataParallel": {"gradient_as_bucket_view": True},
        "comm_hook": None,
    }
    hooked = exported("ddp", torch_engines.ddp_bf16(DOMAIN))
    assert hooked.settings["comm_hook"]["hook"].endswith(".bf16_compress_hook")
    own = replace(known_designs.ddp(DOMAIN), schedule=Schedule("ddp", slice_bytes=5 << 20))
    assert exported("ddp", own).settings["DistributedDataParallel"]["bucket_cap_mb"] == 5.0


def test_groups_are_limits_of_buckets() -> None:
    found = exported("ddp", grouped(2, 2, 2, 1, 1, 0))
    assert found.deviations == ()
    arguments = found.settings["DistributedDataParallel"]
    assert [mib * 2**20 for mib in arguments["bucket_cap_mb_list"]] == [
        4,
        400 * 256 * 4 + 256 * 4,
        sum(v.size_bytes for v in DOMAIN.graph.variables),
    ]
    assert "bucket_cap_mb_list=[" in found.snippet


def test_halves_and_powersgd_are_hooks() -> None:
    for name in ("fp16", "bf16"):
        found = exported("ddp", grouped(0, 0, 0, 0, 0, 0, encoding=Encoding(name)))
        assert f"{name}_compress_hook" in found.snippet
        assert found.settings["comm_hook"]["hook"].endswith(f".{name}_compress_hook")
    packed = [Encoding("powersgd", 4) if len(shape) == 2 else Encoding() for _, shape in MODEL]
    found = exported("ddp", strategy_of(DOMAIN, lambda v: AllReduce(0, encoding=packed[v])))
    assert "matrix_approximation_rank=4" in found.snippet
    assert any("PowerSGD" in said for said in found.deviations)


def test_deviations_of_ddp_are_listed() -> None:
    priority = replace(grouped(0, 0, 0, 0, 0, 0), schedule=Schedule("priority", slice_bytes=4096))
    order, slices = exported("ddp", priority).deviations
    assert "front layers first" in order
    assert "4096 bytes" in slices


@pytest.mark.parametrize("framework", ["ddp", "deepspeed", "fsdp2"])
def test_other_designs_are_refused(framework: FrameworkName) -> None:
    for build in (known_designs.ps_one_server, known_designs.ps_partitioned):
        assert "parameter server" in why_not(framework, build(DOMAIN))
    others = [known_designs.priority_sliced, known_designs.tree_all_reduce]
    if framework != "fsdp2":  # whose own way that is
        others.append(known_designs.dear)
    for build in others:
        why_not(framework, build(DOMAIN))


def test_strategies_that_no_framework_runs_say_why() -> None:
    cut = known_designs.partitioned_all_reduce(DOMAIN)
    assert "is cut into" in why_not("ddp", cut)
    uneven = tuple(Replica(rank, share) for rank, share in enumerate((0.4, 0.2, 0.2, 0.2)))
    assert "0.2 to 0.4" in why_not("ddp", replace(grouped(*range(6)), replicas=uneven))
    rounded = tuple(replace(each, share=0.25 + 1e-8 * (-1) ** each.rank) for each in uneven)
    exported("ddp", replace(grouped(2, 2, 2, 1, 1, 0), replicas=rounded))
    assert "2 iterations old" in why_not("ddp", grouped(*range(6)).carrying(Staleness(2)))
    apart = why_not("ddp", grouped(0, 1, 0, 1, 0, 1))
    assert "travel together, and others get ready between them" in apart
    ring = strategy_of(DOMAIN, lambda v: AllReduce(0, device_order=(0, 2, 1, 3)))
    assert "ring of its own" in why_not("ddp", ring)
    packed = (Encoding(), *[Encoding("fp16")] * 5)
    halves = strategy_of(DOMAIN, lambda v: AllReduce(v, encoding=packed[v]))
    assert "several ways (fp16, none)" in why_not("ddp", halves)


def test_a_strategy_of_another_graph() -> None:
    other = domain_of(chain_graph(), TWO_NODES)
    for framework in set(EXPORTS) - {"autosync"}:
        with pytest.raises(InvalidStrategy, match="is not for graph"):
            settings_for(framework, known_designs.all_reduce_one_bucket(other), DOMAIN)
    with pytest.raises(InvalidStrategy, match="is not for graph"):
        settings_for("ddp", known_designs.ddp(other), DOMAIN)


def test_sparse_gradients() -> None:
    domain = domain_of(chain_graph(((3000, 64), (64,), (128, 64)), (0,), 2), TWO_NODES)
    parallel = known_designs.all_reduce_25mb(domain)
    assert settings_for("ddp", parallel, domain).deviations == ()
    with pytest.raises(NotSupported, match="'v0' is sparse"):
        settings_for("deepspeed", parallel, domain)


def test_fsdp2_takes_modules_together_inner_ones_first() -> None:
    # the block's own norm goes with the embedding, its inner layer alone, the rest with the root
    found = exported("fsdp2", sharded(0, 0, 1, 1, 2, 2))
    assert found.settings["fully_shard"] == [["block.inner"], ["embed", "block"]]
    assert found.settings["mesh"] == {"device_type": "cpu", "mesh_shape": [4]}
    assert any("'scale'" in said for said in found.deviations)  # one row on four ranks
    overlapped = sharded(0, 0, 1, 1, 2, 2, schedule=Schedule("fifo", overlap_forward=True))
    assert len(exported("fsdp2", overlapped).deviations) == len(found.deviations) - 1


def test_fsdp2_refuses_what_its_modules_do_not_allow() -> None:
    assert "'block.inner' has parameters in two messages" in why_not(
        "fsdp2", sharded(0, 0, 1, 2, 3, 3)
    )
    assert "every gradient is reduce-scattered" in why_not("fsdp2", grouped(*range(6)))
    nested = (("a.x", (4,)), ("a.c.x", (4,)), ("b.x", (4,)), ("b.c.x", (4,)))
    domain = model_domain(nested)
    crossed = strategy_of(domain, lambda v: ReduceScatter((0, 1, 1, 0)[v]))
    with pytest.raises(NotSupported, match="inside each other's"):
        settings_for("fsdp2", crossed, domain)


def test_fsdp2_reduces_in_halves() -> None:
    halves = strategy_of(DOMAIN, lambda v: ReduceScatter(0, True, Encoding("bf16")))
    assert "reduce_dtype=torch.bfloat16" in exported("fsdp2", halves).snippet


def test_deepspeed_fills_its_buckets_with_the_messages() -> None:
    found = exported("deepspeed", sharded(1, 1, 1, 1, 0, 0))
    zero = found.settings["zero_optimization"]
    assert (zero["stage"], zero["overlap_comm"]) == (2, True)
    assert zero["reduce_bucket_size"] % 2 == 1
    assert zero["allgather_bucket_size"] == zero["reduce_bucket_size"] + 1  # it takes even ones
    assert zero["reduce_bucket_size"] == 400 * 256 + 1
    assert found.settings["train_micro_batch_size_per_gpu"] == DOMAIN.batch_size
    assert found.settings["zero_allow_untested_optimizer"] is True
    assert found.settings["gradient_clipping"] == 0
    assert len(found.deviations) == 1
    nearly = exported("deepspeed", sharded(2, 2, 1, 1, 1, 0))
    assert "messages in place of the strategy's 3" in nearly.deviations[-1]
    one = exported("deepspeed", sharded(0, 0, 0, 0, 0, 0))
    assert one.settings["zero_optimization"]["stage"] == 1
    without = exported("deepspeed", grouped(*[0] * 6, encoding=Encoding("bf16")))
    assert without.settings["zero_optimization"] == {"stage": 0}
    assert without.settings["communication_data_type"] == "bf16"
    assert "zero_allow_untested_optimizer" not in without.settings
    assert "sums up all gradients after it" in why_not("deepspeed", grouped(1, 1, 1, 0, 0, 0))


@pytest.mark.parametrize(
    ("dtype", "sent", "enabled"),
    [("float32", "fp32", None), ("bfloat16", "bf16", "bf16"), ("float16", "fp16", "fp16")],
)
def test_deepspeed_sends_gradients_in_the_models_type(
    dtype: Any, sent: str, enabled: str | None
) -> None:
    """As many bytes as the strategy counts; the model's type must be enabled for them."""
    variables = tuple(replace(each, dtype=dtype) for each in DOMAIN.graph.variables)
    domain = replace(DOMAIN, graph=replace(DOMAIN.graph, variables=variables))
    for strategy in (sharded(1, 1, 1, 1, 0, 0), grouped(*[0] * 6)):
        found = settings_for("deepspeed", strategy, domain)
        assert found.settings["communication_data_type"] == sent
        assert {"fp16", "bf16"} & found.settings.keys() == ({enabled} if enabled else set())
        assert any("float32 copies" in said for said in found.deviations) == bool(enabled)
    wide = tuple(replace(each, dtype="float64") for each in DOMAIN.graph.variables)
    domain = replace(DOMAIN, graph=replace(DOMAIN.graph, variables=wide))
    with pytest.raises(NotSupported, match="types float64, which it does not send"):
        settings_for("deepspeed", grouped(*[0] * 6), domain)


def test_what_several_batches_per_update_change_is_listed() -> None:
    """Reductions in each batch, and a division of the loss that scripts make by themselves."""
    several = replace(DOMAIN, accumulate=4)

    def said(framework: FrameworkName, strategy: Strategy) -> str:
        once, found = (settings_for(framework, strategy, d).deviations for d in (DOMAIN, several))
        assert found[: len(once)] == once
        return " ".join(found[len(once) :])

    buckets, one = sharded(1, 1, 1, 1, 0, 0), sharded(*[0] * 6)
    assert "divides each loss by the 4 batches" in said("deepspeed", buckets)
    assert "ZeRO 2 reduces the gradients of each of the 4" in said("deepspeed", buckets)
    assert "divides each loss by the 4 batches" in said("deepspeed", one)
    assert "ZeRO 2" not in said("deepspeed", one)
    assert "divides each loss by the 4 batches" in said("deepspeed", grouped(*[0] * 6))
    by_module = sharded(0, 0, 1, 1, 2, 2)
    assert "set_requires_gradient_sync(last)" in said("fsdp2", by_module)
    assert "within model.no_sync()" in said("ddp", known_designs.ddp(DOMAIN))
    assert "accelerator.backward(loss) divides each loss by 4" in said(
        "accelerate", known_designs.ddp(DOMAIN)
    )


def test_zero_takes_no_optimizer_of_whole_variables() -> None:
    domain = replace(DOMAIN, optimizer=Optimizer("lars", elementwise=False))
    with pytest.raises(NotSupported, match="lars needs whole variables"):
        settings_for("deepspeed", sharded(*[0] * 6), domain)


def test_zero_sends_before_a_gradient_that_would_not_fit() -> None:
    assert zero_buckets([3, 3, 3, 3], 6) == [2, 2]
    assert zero_buckets([3, 9, 3, 3], 6) == [1, 1, 2]
    assert zero_buckets([1], 6) == [1]
