"""The replay under `fully_shard`, whose parameters exist only around the passes of their module:
its backward stages hang on the operations that own their variables."""

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from autosync.trials.worker.replay import BackwardStage, GradientStage, Replay
from autosync.trials.worker.replay_compute import Stretch


class StagedReplay(nn.Module):
    """A replay's operations, each with its part of the backward pass behind it.

    The passes are those of the replay where backward runs in the reverse of forward order. Where it
    does not, a stage runs when the operation that owns its variables is reached; one whose
    variables several operations own computes at the last of them in forward order, which is the
    first in backward.
    """

    def __init__(self, plain: Replay) -> None:
        super().__init__()
        self.compute = plain.compute
        self.head = plain.head
        self.operations = plain.operations
        self._hang(plain)

    def _hang(self, plain: Replay) -> None:
        place = {key: number for number, key in enumerate(self.operations)}
        owner: dict[int, tuple[str, str]] = {}
        for key, operation in self.operations.items():
            for name, parameter in operation.named_parameters():
                owner[id(parameter)] = key, name
        stages: dict[str, list[tuple[GradientStage, list[str]]]] = {key: [] for key in place}
        for stage, parameters in plain.backward_stages:
            held: dict[str, tuple[list[Any], list[str]]] = {}
            for source, parameter in zip(stage.gradients, parameters, strict=True):
                key, name = owner[id(parameter)]
                sources, names = held.setdefault(key, ([], []))
                sources.append(source)
                names.append(name)
            last = max(held, key=lambda key: place[key], default=next(iter(place)))
            for key, (sources, names) in (held or {last: ([], [])}).items():
                seconds = stage.stretch if key == last else Stretch(0.0, backward=True)
                stages[key].append((GradientStage(seconds, stage.compute, sources), names))
        for key, operation in self.operations.items():
            operation.register_forward_hook(_stage_hook(stages[key]))

    def forward(self, signal: Tensor) -> Tensor:
        self.compute.start()
        self.compute.run(self.head)
        for operation in self.operations.values():
            signal = operation(signal)
        return signal


def _stage_hook(stages: list[tuple[GradientStage, list[str]]]) -> Any:
    """Behind an operation's forward: the first stage comes last in backward, so it is chained
    first."""

    def hook(module: nn.Module, args: Any, signal: Tensor) -> Tensor:
        for stage, names in stages:
            parameters = [module.get_parameter(name) for name in names]
            signal = cast(Tensor, BackwardStage.apply(signal, stage, *parameters))  # type: ignore[no-untyped-call]
        return signal

    return hook


def modules_of_units(model: StagedReplay, units: Sequence[Sequence[str]]) -> list[list[nn.Module]]:
    """The operations that own the parameters of each unit; one that two units need is in the
    first."""
    taken: set[str] = set()
    found: list[list[nn.Module]] = []
    for names in units:
        keys = sorted({name.split(".")[1] for name in names} - taken, key=int)
        taken.update(keys)
        if keys:
            found.append([model.operations[key] for key in keys])
    return found
