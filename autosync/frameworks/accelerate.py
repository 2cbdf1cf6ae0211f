"""Accelerate: one line, `use_bundle(accelerator, "best.json")`, before the script's own `prepare`.

The accelerator keeps its identity and gets another class, whose `prepare` distributes the model by
the bundle where Accelerate's own puts torch's DDP around it.
"""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.bundle import Bundle
from autosync.errors import InvalidInput, NotSupported
from autosync.extras import needs
from autosync.frameworks.bundle_options import BundleOptions, class_with
from autosync.runtime.attached_models import ATTACHED, REPLICATED
from autosync.runtime.gradient_norm import clip_grad_norm_
from autosync.runtime.transport.agreement import refused_everywhere
from autosync.runtime.transport.process_groups import working_group
from autosync.verification.shard_checks import SHARE_TOLERANCE

with needs("accelerate", "autosync.frameworks.accelerate"):
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.utils import DDPCommunicationHookType, DistributedType

GIVEN = "_autosync_bundle"
PREPARED = "_is_accelerate_prepared"
"""Accelerate's own mark of what it has prepared."""
ELSEWHERE = ("tp_enabled", "cp_enabled", "sp_enabled", "dp_shard_enabled")
"""Dimensions of Accelerate's ParallelismConfig that a bundle knows nothing of."""


def use_bundle(accelerator: Any, bundle: Bundle | str | Path, **options: Any) -> None:
    """From now on `accelerator.prepare(model, optimizer, ...)` trains the model as the bundle says.

    The rest of the script stays: `accumulate`, `backward`, `clip_grad_norm_` (by the norm over all
    ranks, under any plan), `save_state`, `load_state`, `unwrap_model`. With one process nothing is
    synchronized, and a warning says so.

    accelerator: an accelerate.Accelerator that has not prepared the model yet. options: of
    `BundleOptions`; `ddp_options` stand beside the accelerator's DistributedDataParallelKwargs.

    Raises:
        NotSupported: the accelerator shards models itself, or changes what DDP sends.
    """
    if accelerator.distributed_type == DistributedType.NO:
        warnings.warn(
            "the accelerator runs one process: there is nothing to synchronize, and the bundle is "
            "not used.",
            stacklevel=2,
        )
        return
    give_options(accelerator, BundleOptions(bundle, **options))


def give_options(accelerator: Any, given: BundleOptions) -> None:
    """As `use_bundle`, of an accelerator for several processes."""
    _check_data_parallel(accelerator)
    accelerator.__dict__[GIVEN] = given
    if not isinstance(accelerator, BundleAccelerator):
        accelerator.__class__ = class_with(BundleAccelerator, type(accelerator))  # type: ignore[arg-type]


class BundleAccelerator(Accelerator):  # type: ignore[misc]  # has no types
    """Comes before the script's own class in the method resolution order."""

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """As Accelerate's. A model that is trained comes with its optimizers, in one call."""
        on_device: list[bool | None] = [None for _ in args]
        if device_placement is not None:
            on_device = list(device_placement)
        given: list[tuple[Any, bool | None]] = list(zip(args, on_device, strict=True))
        models = [(one, place) for one, place in given if isinstance(one, nn.Module)]
        new = [m for m, _ in models if _trains(m) and ATTACHED.network_of(m) is None]
        optimizers = [_inner(one) for one in args if isinstance(one, Optimizer)]
        if not new:
            _check_distributed(optimizers)
        networks = {
            id(model): self._distribute(new, optimizers, place)
            if model in new
            else self.prepare_model(model, place)
            for model, place in models
        }
        # The state of a distributed optimizer is where it belongs: Accelerate leaves it there.
        others = [
            (one, False if isinstance(one, Optimizer) else place)
            for one, place in given
            if id(one) not in networks
        ]
        prepared = iter(self._prepare_others(others))
        found = [networks[id(one)] if id(one) in networks else next(prepared) for one in args]
        return found[0] if len(found) == 1 else tuple(found)

    def _prepare_others(self, others: list[tuple[Any, bool | None]]) -> list[Any]:
        if not others:
            return []
        objects, on_device = zip(*others, strict=True)
        made = super().prepare(*objects, device_placement=list(on_device))
        return [made] if len(objects) == 1 else list(made)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Of a distributed model, or of one that is not trained.

        Raises:
            InvalidInput: a model to train, without its optimizer.
        """
        network = ATTACHED.network_of(model)
        if network is None and not evaluation_mode and _trains(model):
            raise _without_optimizer(model)
        plain = network.module if isinstance(network, REPLICATED) else model
        made: nn.Module = super().prepare_model(plain, device_placement, evaluation_mode=True)
        return made if network is None else network

    def _distribute(
        self, models: list[nn.Module], optimizers: list[Optimizer], device_placement: bool | None
    ) -> nn.Module:
        given: BundleOptions = self.__dict__[GIVEN]
        with refused_everywhere(working_group(None), self.device):
            _check_one(models, optimizers)
            shipped = given.load("Accelerate")
            _check_even(shipped)
        prepared = super().prepare_model(models[0], device_placement, evaluation_mode=True)
        for optimizer in optimizers:
            if optimizer.state:
                optimizer.load_state_dict(optimizer.state_dict())  # beside its parameters
        network = given.distribute(prepared, optimizers, shipped, _ddp_options(self))
        setattr(network, PREPARED, True)
        return network

    def clip_grad_norm_(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> Tensor:
        """By the norm over all ranks, under any plan; see `autosync.clip_grad_norm_`."""
        self.unscale_gradients()
        return clip_grad_norm_(parameters, max_norm, norm_type)

    def join_uneven_inputs(self, joinables: list[Any], even_batches: bool | None = None) -> Any:
        """Raises NotSupported: a plan waits for every rank in every iteration."""
        models = [one for one in joinables if isinstance(one, nn.Module)]  # beside optimizers
        if any(ATTACHED.plan_of(model) is not None for model in models):
            raise NotSupported(
                "join_uneven_inputs was called for a model that follows a plan, whose ranks all "
                "take equally many steps.",
                thing="join_uneven_inputs",
                remedy="Leave even_batches at True, or drop the last batches.",
            )
        return super().join_uneven_inputs(joinables, even_batches)


def _trains(model: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


def _inner(optimizer: Optimizer) -> Optimizer:
    """Of Accelerate's wrapper, unless that holds the `step` of before, as it does for a scaler."""
    wrapped = isinstance(optimizer, AcceleratedOptimizer) and optimizer.scaler is None
    return optimizer.optimizer if wrapped else optimizer  # type: ignore[attr-defined]


def _check_distributed(optimizers: list[Optimizer]) -> None:
    """Raises InvalidInput where an optimizer came with no distributed model: nothing would
    synchronize what it trains."""
    for optimizer in optimizers:
        plain = optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
        if not ATTACHED.came_with_model(plain):
            kind = type(plain).__name__
            raise InvalidInput(
                f"the optimizer ({kind}) was prepared without its model, and no plan synchronizes "
                "what it trains.",
                thing="accelerator.prepare",
                value=kind,
                remedy="Prepare both in one call: `model, optimizer = accelerator.prepare(model, "
                "optimizer)`. A Trainer with torch_compile does so only before its first "
                "evaluate(), and not again after autosync.detach.",
            )


def _ddp_options(accelerator: Any) -> dict[str, Any]:
    """What Accelerate itself would give to DistributedDataParallel."""
    handler = accelerator.ddp_handler
    options = {} if handler is None else dict(handler.to_kwargs())
    if accelerator.device.type != "cpu":
        place = accelerator.local_process_index
        options |= {"device_ids": [place], "output_device": place}
    return options


def _check_data_parallel(accelerator: Any) -> None:
    kind, config = accelerator.distributed_type, accelerator.parallelism_config
    wrong = "" if kind in (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU) else str(kind)
    for name in ELSEWHERE:
        if getattr(config, name, False):
            wrong = f"a ParallelismConfig with {name}"
    if accelerator.mixed_precision == "fp8":
        wrong = "fp8"
    handler = accelerator.ddp_handler
    if handler is not None and handler.comm_hook != DDPCommunicationHookType.NO:
        wrong = f"the communication hook {handler.comm_hook.value!r}"
    if wrong:
        raise NotSupported(
            f"the accelerator uses {wrong}, and a bundle synchronizes whole replicas by itself.",
            thing="accelerator",
            value=wrong,
            remedy="Make an Accelerator for plain data parallelism (mixed_precision 'no', 'bf16' "
            "or 'fp16'), or train without a bundle.",
        )


def _check_one(models: list[nn.Module], optimizers: list[Optimizer]) -> None:
    """Raises InvalidInput unless one plain model comes with its plain optimizers."""
    if len(models) > 1:
        raise InvalidInput(
            f"{len(models)} models to train came in one accelerator.prepare(), and a bundle is for "
            "one.",
            thing="accelerator.prepare",
            value=len(models),
            remedy="Call use_bundle(accelerator, bundle) and then accelerator.prepare(model, "
            "optimizer) for each of them.",
        )
    model = models[0]
    if isinstance(model, REPLICATED):
        raise InvalidInput(
            f"the model is in torch's {type(model).__name__} already.",
            thing="model",
            value=type(model).__name__,
            remedy="Call use_bundle(accelerator, bundle) before accelerator.prepare, and give that "
            "the plain model.",
        )
    if not optimizers:
        raise _without_optimizer(model)
    if any(isinstance(optimizer, AcceleratedOptimizer) for optimizer in optimizers):
        raise InvalidInput(
            "the optimizer was prepared before its model, with a gradient scaler.",
            thing="optimizer",
            remedy="Prepare both in one call: `model, optimizer = accelerator.prepare(model, "
            "optimizer)`.",
        )


def _without_optimizer(model: nn.Module) -> InvalidInput:
    return InvalidInput(
        f"the model ({type(model).__name__}) was prepared without its optimizer, which waits for "
        "the plan.",
        thing="accelerator.prepare",
        value=type(model).__name__,
        remedy="Prepare both in one call: `model, optimizer = accelerator.prepare(model, "
        "optimizer)`; a model that is not trained, by "
        "`accelerator.prepare_model(model, evaluation_mode=True)`.",
    )


def _check_even(shipped: Bundle) -> None:
    """Raises NotSupported: Accelerate deals batches evenly, and gradients would be weighted."""
    shares = shipped.plan.shares
    if max(shares) - min(shares) > SHARE_TOLERANCE:
        raise NotSupported(
            f"the bundle gives ranks the shares {shares[:16]} of the batch, and "
            "Accelerate deals even ones.",
            thing="bundle.shares",
            value=shares[:16],
            remedy="Tune with even shares, or use autosync.distribute and autosync.ShareSampler.",
        )
