"""Settings of Megatron-LM, torchtitan and accelerate: the names that these document, what is not
as the strategy has it, and refusals with the nearest that they can run."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from autosync.cluster import Cluster
from autosync.domain import Domain, optimizer_named
from autosync.errors import NotSupported
from autosync.exports import settings_for
from autosync.exports.megatron import megatron_buckets
from autosync.exports.settings import FrameworkName
from autosync.graph import DType
from autosync.search.designs import known_designs, torch_engines
from autosync.search.designs.bucket_sizes import ddp_of_size, ddp_of_sizes
from autosync.simulator.sharded_strategy import sharded_by
from autosync.strategy import Encoding, Strategy
from autosync.torch_engine import FullyShard
from autosync.units import MIB
from tests.domains import chain_graph, domain_of, grid_cluster


def blocks_on(cluster: Cluster) -> Domain:
    """16 gradients of 2 MiB, each the weight of a block."""
    graph = chain_graph(((512, 1024),) * 16)
    named = (replace(v, name=f"layers.{i}.weight") for i, v in enumerate(graph.variables))
    return domain_of(replace(graph, variables=tuple(named)), cluster)


DOMAIN = blocks_on(grid_cluster(4, 1, 8.0))
NODES_OF_TWO = blocks_on(grid_cluster(2, 2))

MEGATRON_FLAGS = {
    "--overlap-grad-reduce",
    "--ddp-bucket-size",
    "--use-distributed-optimizer",
    "--overlap-param-gather",
    "--grad-reduce-in-bf16",
}
"""Of megatron/training/arguments.py."""


def flags_of(strategy: Strategy, domain: Domain = DOMAIN) -> tuple[dict[str, Any], tuple[str, ...]]:
    found = settings_for("megatron", strategy, domain)
    flags: dict[str, Any] = found.settings["arguments"]
    assert flags.keys() <= MEGATRON_FLAGS
    words = found.snippet.split()
    assert words == [w for k, v in flags.items() for w in ([k] if v is True else [k, str(v)])]
    return flags, found.deviations


def test_megatrons_buckets_are_those_of_ddp() -> None:
    assert flags_of(known_designs.all_reduce_one_bucket(DOMAIN)) == ({}, ())  # no overlap
    flags, deviations = flags_of(ddp_of_size(DOMAIN, 8 * MIB))
    assert flags == {"--overlap-grad-reduce": True, "--ddp-bucket-size": 2 * MIB}
    assert deviations == ()
    formed = megatron_buckets(DOMAIN, 2 * MIB)
    assert [len(bucket) for bucket in formed] == [4, 4, 4, 4]
    _, deviations = flags_of(ddp_of_sizes(DOMAIN, (2 * MIB, 8 * MIB)))
    assert "messages in place of the strategy's" in deviations[0]


def test_sharded_updates_are_megatrons_distributed_optimizer() -> None:
    flags, _ = flags_of(known_designs.zero1(DOMAIN))
    assert flags["--use-distributed-optimizer"] is True
    assert "--overlap-param-gather" not in flags
    flags, deviations = flags_of(known_designs.zero1_overlap(DOMAIN))
    assert flags["--overlap-param-gather"] is True
    assert flags["--overlap-grad-reduce"] is True
    assert "front layers first" in deviations[0]


def test_gradients_of_bf16_travel_so() -> None:
    variables = tuple(replace(v, dtype="bfloat16") for v in DOMAIN.graph.variables)
    half = replace(DOMAIN, graph=replace(DOMAIN.graph, variables=variables))
    assert flags_of(ddp_of_size(half, 4 * MIB), half)[0]["--grad-reduce-in-bf16"] is True


def test_torchtitans_degrees() -> None:
    found = settings_for("torchtitan", torch_engines.fsdp2(DOMAIN), DOMAIN)
    assert tomllib.loads(found.snippet) == found.settings
    assert found.settings["parallelism"] == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 4,
        "fsdp_reshard_after_forward": "always",
    }
    assert found.settings["training"]["mixed_precision_param"] == "float32"
    assert found.deviations == ()
    hybrid = settings_for("torchtitan", torch_engines.hsdp_zero2(NODES_OF_TWO), NODES_OF_TWO)
    assert hybrid.settings["parallelism"] == {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 2,
        "fsdp_reshard_after_forward": "never",
    }
    units = tuple(f"layers.{i}" for i in range(16))
    halved = sharded_by(DOMAIN, FullyShard(units, 4, param_dtype="bf16"))
    in_bf16 = settings_for("torchtitan", halved, DOMAIN)
    assert in_bf16.settings["training"]["mixed_precision_param"] == "bfloat16"
    assert in_bf16.deviations == ()
    replicated = settings_for("torchtitan", known_designs.ddp(DOMAIN), DOMAIN)
    assert replicated.settings["parallelism"] == {
        "data_parallel_replicate_degree": 4,
        "data_parallel_shard_degree": 1,
    }
    assert "buckets of 100 MiB" in replicated.deviations[0]
    assert settings_for("torchtitan", ddp_of_size(DOMAIN, 100 * MIB), DOMAIN).deviations == ()
    several = replace(DOMAIN, accumulate=4)
    (said,) = settings_for("torchtitan", ddp_of_size(several, 100 * MIB), several).deviations
    assert "all-reduces the gradients of each of the 4 batches" in said


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_torchtitan_has_parameters_of_two_types(dtype: DType) -> None:
    variables = tuple(replace(v, dtype=dtype) for v in DOMAIN.graph.variables)
    other = replace(DOMAIN, graph=replace(DOMAIN.graph, variables=variables))
    with pytest.raises(NotSupported, match=f"its parameters are of {dtype}"):
        settings_for("torchtitan", torch_engines.fsdp2(other), other)


@pytest.mark.parametrize("hook", ["", "bf16", "powersgd"])
def test_accelerate_wraps_so(hook: str) -> None:
    pytest.importorskip("accelerate")
    several = replace(DOMAIN, accumulate=4)
    strategy = ddp_of_size(several, 8 * MIB)
    wanted: dict[str, Any] = {"bucket_cap_mb": 8, "gradient_as_bucket_view": True}
    if hook:
        encoding = Encoding(hook, 4 if hook == "powersgd" else 0)  # type: ignore[arg-type]
        strategy = torch_engines.ddp_hooked(several, encoding)
        wanted.pop("bucket_cap_mb")
    found = settings_for("accelerate", strategy, several)
    space: dict[str, Any] = {}
    lines = found.snippet.replace("Accelerator(", "Accelerator(cpu=True, ")
    exec(lines, space)  # what a user pastes into a script
    assert space["accelerator"].ddp_handler is space["wrapping"]
    assert space["accelerator"].gradient_accumulation_steps == 4
    assert found.settings["Accelerator"] == {"gradient_accumulation_steps": 4}
    assert space["wrapping"].to_kwargs() | wanted == space["wrapping"].to_kwargs()
    said = found.settings["DistributedDataParallelKwargs"].get("comm_hook", "no")
    assert space["wrapping"].comm_hook.value == said
    if hook == "powersgd":
        assert space["wrapping"].comm_state_option["matrix_approximation_rank"] == 4


@pytest.mark.parametrize(
    ("framework", "build", "why", "nearest"),
    [
        ("megatron", known_designs.dear, "gathers gradients", "`zero1`"),
        ("megatron", known_designs.ps_one_server, "parameter server", "another strategy"),
        ("megatron", torch_engines.fsdp2, "every rank's parameters whole", "`zero1_overlap`"),
        ("megatron", torch_engines.ddp_bf16, "packs no gradients as bf16", "as they are"),
        ("torchtitan", known_designs.all_reduce_25mb, "all-reduced by a plan", "`fsdp2`"),
        ("torchtitan", torch_engines.ddp_fp16, "no setting that packs", "as they are"),
        (
            "torchtitan",
            lambda domain: sharded_by(domain, FullyShard(("layers.0", "layers.1"), 4, (2, True))),
            "some of its units reshard to a smaller group",
            "`fsdp2`",
        ),
        ("accelerate", torch_engines.zero2, "by their classes", "fsdp_version=2"),
        ("accelerate", known_designs.ps_one_server, "parameter server", "another strategy"),
        (
            "accelerate",
            lambda domain: ddp_of_sizes(domain, (2 * MIB, 8 * MIB)),
            "one size for all buckets",
            "bucket_cap_mb=6, the mean of its buckets",
        ),
    ],
)
def test_what_they_cannot_run_is_refused_with_the_nearest(
    framework: FrameworkName, build: Any, why: str, nearest: str
) -> None:
    with pytest.raises(NotSupported) as caught:
        settings_for(framework, build(DOMAIN), DOMAIN)
    assert why in caught.value.message
    assert nearest in caught.value.remedy
    assert "autosync.distribute" in caught.value.remedy


def test_an_optimizer_of_whole_variables_is_refused_by_megatron() -> None:
    domain = replace(DOMAIN, optimizer=optimizer_named("adafactor"))
    with pytest.raises(NotSupported, match="adafactor needs whole ones"):
        settings_for("megatron", known_designs.zero1(DOMAIN), domain)
