"""The end of the process: messages in flight land before the interpreter goes."""

import atexit
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from autosync.runtime.execution.engine import Engine
from autosync.runtime.execution.iteration import Phase

EXIT_SECONDS = 30.0
"""How long the last iteration's messages may take after the script has ended. A message that
outlives the interpreter would abort the process: its thread ends inside the backend's own code."""

EXIT_PATIENCE = timedelta(seconds=EXIT_SECONDS)


def finish_at_exit(engine: Engine, end_groups: Callable[[], None]) -> Callable[[], None]:
    """Let the messages of the last `step()` land at exit, then end groups and threads.

    After an error in the middle of an iteration nothing is waited for. Returns what was
    registered, for `atexit.unregister`.
    """

    def landed() -> bool:
        stepped = engine.phase is Phase.STEPPED
        done = engine.iteration.outdated_variables == 0
        return engine.failure is not None or not stepped or done

    def finish() -> None:
        with engine.condition:
            engine.condition.wait_for(landed, timeout=EXIT_SECONDS)
        if engine.failure is None:
            engine.streams.synchronize()
            if engine.streams.asynchronous and engine.phase is Phase.STEPPED:
                # A rank's own end of a message is not its peers': to end a group aborts theirs.
                with suppress(RuntimeError):
                    engine.control.barrier(dist.BarrierOptions()).wait(EXIT_PATIENCE)
        end_groups()
        engine.close()

    atexit.register(finish)
    return finish
