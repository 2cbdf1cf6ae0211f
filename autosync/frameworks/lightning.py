"""`Trainer(strategy=AutoSyncStrategy("best.json"))` of `lightning.pytorch`."""

from autosync.extras import needs
from autosync.frameworks.lightning_strategy import PlanStrategy

with needs("lightning", "autosync.frameworks.lightning"):
    from lightning.pytorch.strategies import DDPStrategy


class AutoSyncStrategy(PlanStrategy, DDPStrategy):  # type: ignore[misc]  # of no known type here
    """Lightning's `ddp` with a bundle's plan. See `PlanStrategy`."""
