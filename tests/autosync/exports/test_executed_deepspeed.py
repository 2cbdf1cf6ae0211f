"""Exported settings run by DeepSpeed on two ranks, where it is installed: it is none of our
dependencies, and compiles nothing on a CPU."""

import json
import os
import sys
import warnings
from importlib import import_module as import_module_named
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autosync.domain import Domain
from autosync.exports import settings_for
from autosync.exports.deepspeed import CONFIGURATION_FILE, zero_buckets
from autosync.strategy import AllReduce, Encoding, ReduceScatter
from tests.autosync.exports.test_executed_settings import INPUTS, grouped, network, recorded
from tests.autosync.runtime.cases import gap
from tests.autosync.runtime.ranks import ranks

pytestmark = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"
)

Half = Literal["float32", "bfloat16", "float16"]
LAYERS = [3, 3, 2, 2, 1, 1, 0, 0]
NEAR = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


def cast_network(dtype: Half) -> nn.Module:
    return network().to(getattr(torch, dtype))


def network_domain(dtype: Half) -> Domain:
    return recorded(cast_network(dtype), INPUTS.to(getattr(torch, dtype)))


def under_deepspeed(
    rank: int, world: int, settings: dict[str, Any], snippet: str, folder: str, dtype: Half
) -> tuple[list[tuple[str, int]], float]:
    """Type and elements of each gradient message, and how far two steps are from one process's."""
    warnings.simplefilter("default")  # DeepSpeed's own
    deepspeed = import_module_named("deepspeed")
    # which would compile shared memory messages: gloo's are what torch sends elsewhere, too
    messages_of_torch: Any = sys.modules["deepspeed.comm.torch"]
    messages_of_torch.build_shm_op = lambda: None
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    config = Path(folder) / f"{rank}-{CONFIGURATION_FILE}"
    config.write_text(json.dumps(settings))
    model, alone = cast_network(dtype), cast_network(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    single = torch.optim.SGD(alone.parameters(), lr=0.01)
    deepspeed.init_distributed("gloo", dist_init_required=False)
    space: dict[str, Any] = {"model": model, "optimizer": optimizer}
    exec(snippet.replace(CONFIGURATION_FILE, str(config)), space)
    engine, seen = space["model"], []
    reduce = dist.all_reduce

    def recorded(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if tensor.numel() > 1:
            seen.append((str(tensor.dtype).removeprefix("torch."), tensor.numel()))
        return reduce(tensor, *arguments, **named)

    dist.all_reduce = recorded
    try:
        for _ in range(2):
            seen.clear()
            engine.backward(loss_of(engine, rank, dtype))
            engine.step()
            torch.stack([loss_of(alone, r, dtype) for r in range(world)]).mean().backward()
            single.step()
            single.zero_grad()
    finally:
        dist.all_reduce = reduce
    pairs = zip(engine.module.parameters(), alone.parameters(), strict=True)
    worst = max(gap(mine, theirs) for mine, theirs in pairs)
    return sorted(seen), worst


def loss_of(model: nn.Module, rank: int, dtype: Half) -> torch.Tensor:
    outputs: torch.Tensor = model((INPUTS + rank).to(getattr(torch, dtype)))
    return outputs.float().square().mean()


def bucket_elements(settings: dict[str, Any], domain: Domain) -> list[int]:
    """Of the messages that the export foresees, in increasing order."""
    graph = domain.graph
    ready = [graph.variables[index].elements for index in graph.gradient_order]
    size = settings["zero_optimization"].get("reduce_bucket_size", sum(ready))
    counts, sizes = zero_buckets(ready, size), iter(ready)
    return sorted(sum(next(sizes) for _ in range(count)) for count in counts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("groups", "kind", "encoding"),
    [
        ([0] * 8, ReduceScatter, Encoding()),
        (LAYERS, ReduceScatter, Encoding()),
        ([0] * 8, AllReduce, Encoding()),
        (LAYERS, ReduceScatter, Encoding("bf16")),
    ],
    ids=["ZeRO 1", "ZeRO 2", "stage 0", "packed"],
)
def test_deepspeed_sends_the_messages_that_the_export_foresees(
    dtype: Half, groups: list[int], kind: Any, encoding: Encoding, tmp_path: Path
) -> None:
    domain = network_domain(dtype)
    options = {"sharded_update": True} if kind is ReduceScatter else {}
    strategy = grouped(domain, groups, kind, encoding=encoding, **options)
    found = settings_for("deepspeed", strategy, domain)
    sent = "bfloat16" if encoding.name == "bf16" else dtype
    with ranks(2) as pair:  # DeepSpeed keeps what it was first given
        answers = pair.run(under_deepspeed, found.settings, found.snippet, str(tmp_path), dtype)
    for seen, worst in answers:
        assert [count for _, count in seen] == bucket_elements(found.settings, domain)
        assert {name for name, _ in seen} == {sent}
        assert worst < max(NEAR[dtype], NEAR[sent])
