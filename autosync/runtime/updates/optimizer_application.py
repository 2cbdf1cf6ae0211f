"""Updates as of one `step()`: with the hyperparameters of that moment, and on a GPU not before it.

Whoever calls these counts what they have made current. On a GPU all updates of a variable run on
one stream, that of arrivals, whichever thread asks for them.
"""

from torch import Tensor
from torch.optim import Optimizer

from autosync.runtime.layout.packing import unpack_values
from autosync.runtime.layout.records import Bucket, VariableRecord
from autosync.runtime.streams import Mark, Streams
from autosync.runtime.updates import flat_update
from autosync.runtime.updates.clipping import lend_scaler_tensors
from autosync.runtime.updates.unused_variables import Unused


class OptimizerApplication:
    """kind: the optimizer's own class."""

    def __init__(
        self, optimizer: Optimizer, kind: type[Optimizer], unused: Unused, streams: Streams
    ):
        self.optimizer = optimizer
        self.kind = kind
        self.unused = unused
        self.streams = streams
        self._hyper: list[flat_update.Group] = []
        self._stepped: Mark = None

    def release(self) -> None:
        """The script calls `step()`: gradients are what it leaves, and on a GPU its stream has
        been asked for everything that still reads the values before."""
        self._hyper = flat_update.snapshot(self.optimizer)
        lend_scaler_tensors(self.optimizer, self.streams)
        self._stepped = self.streams.mark()

    def flat(self, bucket: Bucket) -> None:
        """Update this rank's part of a bucket; values that need not travel are current then."""
        self.streams.wait(self._stepped)
        if bucket.flat:
            bucket.flat.run(self.optimizer, self._hyper, self.unused.by_all)
        if not bucket.travels:
            unpack_values(bucket)

    def deferred(self, variables: list[VariableRecord]) -> None:
        """Update whole variables while the script may already have replaced their gradients."""
        used = [variable for variable in variables if not self.unused.by_all(variable.index)]
        self.streams.wait(self._stepped)
        flat_update.update_aliases(self.kind, self.optimizer, used, self._hyper)

    def whole(self, variables: list[VariableRecord], all_of_them: bool) -> None:
        """Update whole variables from `parameter.grad`, within the script's `step()`."""
        for variable in variables:
            if self.unused.by_all(variable.index):
                variable.parameter.grad = None
        self.streams.wait(self._stepped)
        if all_of_them and not self._script_may_change_settings():
            flat_update.plain_step(self.kind)(self.optimizer)
        else:
            flat_update.update_parameters(self.kind, self.optimizer, variables, self._hyper)

    def _script_may_change_settings(self) -> bool:
        """Before the device reads them: a learning rate may be a tensor there."""
        values = (value for group in self._hyper for value in group.values())
        return self.streams.asynchronous and any(isinstance(value, Tensor) for value in values)
