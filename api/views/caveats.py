"""What a reader must know before believing a tuning's figures: shown beside every headline."""

from collections.abc import Sequence
from dataclasses import dataclass

from autosync.api.views.schemas import Tuning
from autosync.trials.request_names import (
    GPU_BY_MPS,
    GPU_IN_TURNS,
    PREDICTED_WAITS,
    SHORT_OF_CORES,
)

UNSHAPED = "unshaped links"
"""What a launcher's description says when links run at whatever speed this machine has."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """label: of a badge. reason: a sentence."""

    label: str
    reason: str


NOT_SHAPED = Caveat(
    "links not shaped",
    "Messages ran at this machine's loopback speed, not at the cluster's: times and ranking do not "
    "stand for the cluster.",
)
ESTIMATED = Caveat(
    "compute estimated",
    "Compute times are an estimate from the device's data sheet, not a measurement.",
)

WAITS_PREDICTED = Caveat(
    "swapping predicted",
    "A replay swaps nothing: what compute waits for swapped tensors was waited out as predicted, "
    "not measured. Tune in the running job (autosync.tune) to measure it.",
)

FEW_CORES = Caveat(
    "few cores",
    "Ranks had less of this machine than hosts give to a GPU: what they do themselves (copies, "
    "sums, updates) is a larger share of these times than there. Twice the time scale "
    "(--time-scale) halves it, in trials that take twice as long.",
)

SHARED_BY_MPS = Caveat(
    "GPU shared (MPS)",
    "Several ranks shared a GPU, by CUDA MPS: their kernels ran side by side and competed for it, "
    "as they do not where each rank has a GPU of its own. Compute takes longer here, and what NCCL "
    "takes from it is not what it takes there.",
)

SHARED_IN_TURNS = Caveat(
    "GPU shared in turns",
    "Several ranks shared a GPU without CUDA MPS: their processes took turns on it, and a message "
    "waits for the turns of all its ranks (milliseconds, whatever its size). The result shows that "
    "plans are right; its times and ranking do not stand for the cluster.",
)


def caveats_of(tunings: Sequence[Tuning]) -> dict[str, tuple[Caveat, ...]]:
    """By the tuning's id."""
    return {
        tuning.id: tuple(
            caveat
            for caveat, holds in (
                (NOT_SHAPED, tuning.launcher == "local" or _ran_where(tuning, UNSHAPED)),
                (ESTIMATED, tuning.profile_source == "estimated"),
                (FEW_CORES, _ran_where(tuning, SHORT_OF_CORES)),
                (WAITS_PREDICTED, _ran_where(tuning, PREDICTED_WAITS)),
                (SHARED_BY_MPS, _ran_where(tuning, GPU_BY_MPS)),
                (SHARED_IN_TURNS, _ran_where(tuning, GPU_IN_TURNS)),
            )
            if holds
        )
        for tuning in tunings
    }


def _ran_where(tuning: Tuning, words: str) -> bool:
    """Whether a trial of it ran on what is described so, wherever it was asked to run."""
    return any(words in launcher for launcher in tuning.ran_on)
