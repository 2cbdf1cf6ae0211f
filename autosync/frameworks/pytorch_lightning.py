"""`Trainer(strategy=AutoSyncStrategy("best.json"))` of `pytorch_lightning`."""

from autosync.extras import needs
from autosync.frameworks.lightning_strategy import PlanStrategy

with needs("pytorch_lightning", "autosync.frameworks.pytorch_lightning"):
    from pytorch_lightning.strategies import DDPStrategy


class AutoSyncStrategy(PlanStrategy, DDPStrategy):  # type: ignore[misc]  # of no known type here
    """Lightning's `ddp` with a bundle's plan. See `PlanStrategy`."""
