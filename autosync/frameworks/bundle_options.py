"""The options that every framework adapter takes beside a bundle, and how it applies a bundle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from autosync.bundle import Bundle, load_bundle
from autosync.errors import NotSupported
from autosync.extensions.registry import verification_of
from autosync.runtime.distributed import distribute
from autosync.runtime.drift_watch import OnDrift


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """Arguments of `autosync.distribute`, by its names, but for two: frameworks clip gradients by
    themselves, and replicas are all ranks. bundle: or its file."""

    bundle: Bundle | str | Path
    allow_lossy: bool = False
    ddp_options: Mapping[str, Any] | None = None
    allow_inexact: bool = False
    on_drift: OnDrift | None = None

    def load(self, framework: str) -> Bundle:
        """
        Raises:
            NotSupported: no rank holds all parameters under the plan, and the framework would save,
                load and unwrap whole ones.
        """
        shipped = self.bundle if isinstance(self.bundle, Bundle) else load_bundle(self.bundle)
        if shipped.plan.sharding is not None:
            raise NotSupported(
                f"the bundle puts torch's fully_shard on the model, whose parameters {framework} "
                "takes for whole.",
                thing="bundle.plan.engine",
                value=shipped.plan.engine,
                remedy=f"Use {framework}'s own FSDP2, or autosync.distribute in a script of your "
                "own; or ship another strategy of the tuning: `autosync show TUNING` lists them, "
                "`autosync export TUNING --strategy ID` writes one. Over REST a space of "
                "sharded_parameters: false has none that shards.",
            )
        for entry in shipped.plan.extensions:
            if entry.divides_model:
                words = "; ".join(verification_of(entry.key).describe(shipped.strategy, None))
                raise NotSupported(
                    f"no rank holds all parameters under the bundle ({words}), and {framework} "
                    "takes every rank's parameters for whole: it reads model.state_dict() on some "
                    "ranks alone, which then is a collective.",
                    thing=f"bundle.plan.{entry.key}",
                    value=entry.key,
                    remedy="Use autosync.distribute in a script of your own; or tune with a space "
                    f"of {entry.key}: false.",
                )
        return shipped

    def distribute(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        shipped: Bundle,
        ddp_options: Mapping[str, Any],
    ) -> nn.Module:
        """What is trained in the model's place. shipped: of `load`. ddp_options: the framework's
        own, which the script's come before. Raises as `autosync.distribute`."""
        network, _ = distribute(
            model,
            optimizers[0] if len(optimizers) == 1 else list(optimizers),
            shipped,
            allow_lossy=self.allow_lossy,
            ddp_options={**ddp_options, **(self.ddp_options or {})},
            allow_inexact=self.allow_inexact,
            on_drift=self.on_drift,
        )
        return network


@cache
def class_with(adapter: type, own: type) -> type:
    """A class of the script, `own`, whose methods `adapter` comes before; `adapter` is a subclass
    of the framework's class that `own` is or was made from."""
    if issubclass(adapter, own):
        return adapter
    return type(f"Bundle{own.__name__}", (adapter, own), {})
