"""The steps of several optimizers of one model.

Where every replica updates whole variables within `step()`, each optimizer updates its own at its
own `step()`, in any order and number, as under torch's DDP. Where updates are owned, sharded or run
into the next forward pass, one bucket may hold variables of several: there a `step()` is noted, and
the last of them runs all updates. What a script could do between them unseen is refused.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.execution.pending_gradients import plain_gradient
from autosync.runtime.layout.records import VariableRecord
from autosync.runtime.updates.joined_optimizers import JoinedOptimizers


class StepTurns:
    """together: the last `step()` of an iteration runs all updates.

    postponed: `zero_grad(set_to_none)` calls of optimizers whose step is noted.
    """

    def __init__(
        self, joined: JoinedOptimizers, variables: Sequence[VariableRecord], together: bool
    ):
        self.together = together
        self.postponed: list[tuple[Optimizer, bool]] = []
        self._joined = joined
        self._taken: set[int] = set()
        self._noted: list[tuple[VariableRecord, Tensor | None]] = []
        owners = joined.owners()
        self._variables = {
            id(optimizer): [v for v in variables if v.group >= 0 and owners[v.group] == number]
            for number, optimizer in enumerate(joined.optimizers)
        }

    def begin(self) -> None:
        """Of an iteration: a synchronized backward pass begins."""
        self._taken.clear()
        self._noted.clear()

    def has_taken(self, optimizer: Optimizer) -> bool:
        return id(optimizer) in self._taken

    def all_taken(self) -> bool:
        return len(self._taken) == len(self._joined.optimizers)

    def take(self, optimizer: Optimizer) -> list[VariableRecord]:
        """Its `step()` has come. Returns the variables that it holds."""
        self._taken.add(id(optimizer))
        return self._variables[id(optimizer)]

    def note(self, optimizer: Optimizer) -> bool:
        """Its `step()` has come; whether it is the last.

        Raises:
            NotSupported: a gradient was cleared or replaced since another's.
        """
        variables = self.take(optimizer)
        self._joined.note(optimizer)
        if self.all_taken():
            for variable, gradient in self._noted:
                if plain_gradient(variable) is not gradient:
                    raise _refusal(
                        f"the gradient of {variable.name!r} was cleared or replaced between the "
                        "step() of its optimizer and those of the others",
                        variable.name,
                    )
            return True
        self._noted += [(variable, plain_gradient(variable)) for variable in variables]
        return False

    def postpone(self, optimizer: Optimizer, set_to_none: bool) -> bool:
        """Whether its `zero_grad()` waits for the steps of the others.

        Raises:
            NotSupported: it has not stepped, while others have.
        """
        if not (self.together and self._taken) or self.all_taken():
            return False
        if id(optimizer) not in self._taken:
            kind = self._name_of(optimizer)
            raise _refusal(f"zero_grad() of optimizer {kind} came before its step()", kind)
        self.postponed.append((optimizer, set_to_none))
        return True

    def take_postponed(self) -> list[tuple[Optimizer, bool]]:
        taken, self.postponed = self.postponed, []
        return taken

    def _name_of(self, optimizer: Optimizer) -> str:
        return self._joined.classes[self._joined.optimizers.index(optimizer)].__name__

    def check_finished(self) -> None:
        """Before anything that reads values: every noted `step()` has run.

        Raises:
            NotSupported: an optimizer has not stepped, while others have.
        """
        if self.together and self._taken and not self.all_taken():
            waiting = [o for o in self._joined.optimizers if id(o) not in self._taken]
            kind = self._name_of(waiting[0])
            raise _refusal(f"the model went on before optimizer {kind} had stepped", kind)


def _refusal(what: str, value: str) -> NotSupported:
    return NotSupported(
        f"{what}: under this plan all optimizers of a model step after each synchronized backward "
        "pass, and the last step() runs their updates.",
        thing="optimizer",
        value=value,
        remedy="Call every optimizer's step() behind the backward pass, or use a strategy of "
        "all-reduces without owned or sharded updates and without overlap of the forward pass.",
    )


def scaler_of_several() -> NotSupported:
    return NotSupported(
        "a GradScaler, which lets one optimizer step and another not, met several optimizers under "
        "a plan whose last step() runs all updates.",
        thing="GradScaler",
        remedy="Use one optimizer with several parameter groups, bfloat16 without a scaler, or a "
        "strategy of all-reduces without owned or sharded updates and without overlap of the "
        "forward pass.",
    )
