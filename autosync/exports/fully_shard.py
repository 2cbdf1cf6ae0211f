"""A strategy of torch's `fully_shard` as a function that puts it on a model."""

from typing import Any

from autosync.domain import Domain
from autosync.exports.settings import FrameworkSettings, check_variables
from autosync.strategy import EXACT, Strategy
from autosync.torch_engine import FullyShard, modules_of

HALF_TYPES = {"fp16": "float16", "bf16": "bfloat16"}


def fully_shard_settings(
    strategy: Strategy, engine: FullyShard, domain: Domain
) -> FrameworkSettings:
    """Raises InvalidStrategy where the strategy is for another graph."""
    check_variables(strategy, domain)
    encoding = getattr(strategy.choices[0].shards[0], "encoding", EXACT)
    own = domain.graph.variables[0].dtype
    device = "cuda" if domain.cluster.backend == "nccl" else "cpu"
    world, ranks = domain.world_size, engine.shard_ranks
    shape = (world,) if ranks == world else (world // ranks, ranks)
    settings: dict[str, Any] = {
        "mesh": {"device_type": device, "mesh_shape": list(shape)},
        "fully_shard": [list(modules_of(unit)) for unit in engine.units],
        "reshard_after_forward": list(engine.resharding),
        "forward_prefetch": engine.forward_prefetch,
        "backward_prefetch": engine.backward_prefetch,
        "param_dtype": HALF_TYPES.get(engine.param_dtype),
        "kept_between_batches": engine.kept_between_batches or None,
        "reduce_dtype": HALF_TYPES.get(encoding.name, own if engine.param_dtype else None),
    }
    return FrameworkSettings(
        framework="fsdp2",
        strategy_id=strategy.id,
        deviations=(),
        settings=settings,
        environment={},
        snippet=_function(engine, device, shape, settings["reduce_dtype"], own),
    )


def _function(
    engine: FullyShard, device: str, shape: tuple[int, ...], reduce_dtype: str | None, own: str
) -> str:
    names = ', mesh_dim_names=("replicate", "shard")' if len(shape) > 1 else ""
    types = {"param_dtype": HALF_TYPES.get(engine.param_dtype), "reduce_dtype": reduce_dtype}
    options, of_root = (
        f"mesh=mesh, mp_policy=MixedPrecisionPolicy({listed})" if listed else "mesh=mesh"
        for listed in (
            _listed(types),
            _listed(types | {"output_dtype": own} if engine.param_dtype else types),
        )
    )
    nested = any(
        one.startswith(f"{other}.")
        for unit in engine.units
        for one in modules_of(unit)
        for each in engine.units
        for other in modules_of(each)
    )
    inner_first = "sorted(units, key=depth)[::-1]" if nested else "units"
    lines = [
        *(["import torch"] if reduce_dtype else []),
        "from torch.distributed.device_mesh import init_device_mesh",
        f"from torch.distributed.fsdp import {'MixedPrecisionPolicy, ' * bool(reduce_dtype)}"
        "fully_shard",
        "",
        "",
        "def shard(model):",
        '    """Make the optimizer after this: the model has other parameters than before."""',
        f"    mesh = init_device_mesh({device!r}, {shape!r}{names})",
        "    units = [  # modules that are gathered as one, and how they reshard after forward",
        *(
            f"        ({list(modules_of(unit))!r}, {engine.resharding[number]}),"
            for number, unit in enumerate(engine.units)
        ),
        "    ]",
        *(["    def depth(unit): return max(name.count('.') for name in unit[0])"] * nested),
        f"    for names, reshard in {inner_first}:",
        "        modules = [model.get_submodule(name) for name in names]",
        f"        fully_shard(modules, {options}, reshard_after_forward=reshard)",
        f"    fully_shard(model, {of_root}, reshard_after_forward=False)",
        *_prefetching(engine),
        "    return model",
        "",
        *_accumulating(engine),
    ]
    return "\n".join(lines)


def _accumulating(engine: FullyShard) -> list[str]:
    """What the training loop calls where it adds up the gradients of several batches."""
    if not engine.kept_between_batches:  # each batch reduces its gradients, as torch does by itself
        return []
    return [
        "",
        "def before_batch(model, last):",
        '    """Call it before each forward pass. last: whether an update follows the batch."""',
        "    model.set_requires_gradient_sync(last)",
        *["    model.set_reshard_after_backward(last)"] * (engine.kept_between_batches == "values"),
        "",
    ]


def _listed(types: dict[str, str | None]) -> str:
    return ", ".join(f"{name}=torch.{dtype}" for name, dtype in types.items() if dtype)


def _prefetching(engine: FullyShard) -> list[str]:
    forward, backward = engine.forward_prefetch, engine.backward_prefetch
    if (forward, backward) == (1, 1):  # which torch does by itself
        return []
    lines = [
        "    in_forward = [model, *(model.get_submodule(names[0]) for names, _ in units)]",
        "    for i, module in enumerate(in_forward):",
    ]
    if forward > 1:
        lines += [
            f"        following = in_forward[i + 1 : i + {1 + forward}]",
            "        module.set_modules_to_forward_prefetch(following)",
        ]
    if backward > 1:
        lines += [
            "        before = in_forward[1:i] if i else in_forward[1:]",
            f"        module.set_modules_to_backward_prefetch(before[::-1][:{backward}])",
        ]
    return lines
