"""Where the script waits for what is in flight: messages, updates and module buffers."""

from collections.abc import Sequence

from autosync.runtime.device.streams import Streams
from autosync.runtime.execution.iteration import IterationState, Phase
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.execution.owed_parameters import OwedParameters
from autosync.runtime.execution.step_turns import StepTurns
from autosync.runtime.layout.records import VariableRecord
from autosync.runtime.transport.module_buffers import BufferBroadcast


class ScriptWaits:
    """variables: of the plan. turns: of several optimizers. owed: parameters whose values are on
    their way."""

    def __init__(
        self,
        variables: Sequence[VariableRecord],
        iteration: IterationState,
        monitor: Monitor,
        streams: Streams,
        buffers: BufferBroadcast,
        turns: StepTurns | None,
    ):
        self.owed = OwedParameters(variables, self.wait_for)
        self._variables = variables
        self._iteration = iteration
        self._monitor = monitor
        self._streams = streams
        self._buffers = buffers
        self._turns = turns

    def wait_for(self, variables: Sequence[VariableRecord]) -> None:
        """Before a forward that reads these variables."""
        if self._iteration.phase is not Phase.STEPPED:
            return
        if self._iteration.outdated_variables or self._monitor.failure:
            self._monitor.wait(lambda: all(variable.missing_values == 0 for variable in variables))
        self._streams.wait_last_events(variables)
        self.owed.release(variables)

    def flush(self) -> None:
        """For every message and update in flight, module buffers included."""
        self._monitor.check()
        self.check_turns()
        self.drain()
        self.finish_buffers()

    def drain(self) -> None:
        """For every message and update in flight."""
        if self._iteration.phase is Phase.STEPPED:
            self._monitor.wait(lambda: self._iteration.outdated_variables == 0)
        elif self._iteration.phase is Phase.REDUCING:
            self._monitor.wait(lambda: self._iteration.unreduced_buckets == 0)
        self._streams.wait_last_events(self._variables)
        self.owed.release_all()

    def finish_buffers(self) -> None:
        """For rank 0's module buffers, where their broadcast has begun."""
        with self._monitor.refusing(), self._monitor.exchange("the broadcast of module buffers"):
            self._buffers.finish(self._monitor.wait_for_work)

    def check_turns(self) -> None:
        """Every noted `step()` of several optimizers has run."""
        if self._turns is not None and self._iteration.phase is Phase.REDUCING:
            self._turns.check_finished()
