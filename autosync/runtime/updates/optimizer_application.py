"""Applies the optimizer as of one `step()`: with the hyperparameters of that moment, and on a GPU
not before it.

The caller counts which variables became current. On a GPU all updates of a variable run on one
stream, the landing stream, whichever thread asks for them.
"""

from torch import Tensor
from torch.optim import Optimizer

from autosync.runtime.device.streams import DeviceEvent, Streams
from autosync.runtime.layout.packing import unpack_values
from autosync.runtime.layout.records import Bucket, Settings, VariableRecord
from autosync.runtime.updates import twin_optimizer
from autosync.runtime.updates.clipping import keep_scaler_tensors
from autosync.runtime.updates.joined_optimizers import settings_of
from autosync.runtime.updates.unused_variables import UnusedVariables


class OptimizerApplication:
    """optimizer_class: the optimizer's own."""

    def __init__(
        self,
        optimizer: Optimizer,
        optimizer_class: type[Optimizer],
        unused: UnusedVariables,
        streams: Streams,
    ):
        self.optimizer = optimizer
        self.optimizer_class = optimizer_class
        self.unused = unused
        self.streams = streams
        self._settings: Settings = []
        self._step_event: DeviceEvent = None

    def note_step(self) -> None:
        """The script calls `step()`: gradients are what it leaves, and on a GPU its stream has
        been asked for everything that still reads the values before."""
        self._settings = settings_of(self.optimizer)
        keep_scaler_tensors(self.optimizer, self.streams)
        self._step_event = self.streams.record_event()

    def update_bucket(self, bucket: Bucket) -> None:
        """Update this rank's part of a bucket; values that need no message are current then."""
        self.streams.wait_event(self._step_event)
        if bucket.update:
            unused = self.unused.by_every_rank(variable.index for variable in bucket.variables)
            bucket.update.run(self.optimizer, self._settings, unused.__contains__)
        if not bucket.values_travel:
            unpack_values(bucket)

    def update_deferred(self, variables: list[VariableRecord]) -> None:
        """Update whole variables while the script may already have replaced their gradients."""
        unused = self.unused.by_every_rank(variable.index for variable in variables)
        used = [variable for variable in variables if variable.index not in unused]
        self.streams.wait_event(self._step_event)
        twin_optimizer.update_aliases(self.optimizer_class, self.optimizer, used, self._settings)

    def update_whole(self, variables: list[VariableRecord], all_of_them: bool) -> None:
        """Update whole variables from `parameter.grad`, within the script's `step()`."""
        unused = self.unused.by_every_rank(variable.index for variable in variables)
        for variable in variables:
            if variable.index in unused:
                variable.parameter.grad = None
        self.streams.wait_event(self._step_event)
        if all_of_them and not self._script_may_change_settings():
            with twin_optimizer.as_plain(self.optimizer, self.optimizer_class):
                twin_optimizer.plain_step(self.optimizer_class)(self.optimizer)
        else:
            twin_optimizer.update_parameters(
                self.optimizer_class, self.optimizer, variables, self._settings
            )

    def _script_may_change_settings(self) -> bool:
        """Before the device reads them: a learning rate may be a tensor there."""
        values = (value for group in self._settings for value in group.values())
        return self.streams.asynchronous and any(isinstance(value, Tensor) for value in values)
