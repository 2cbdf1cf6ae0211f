"""The verdict on a tuning: what is how much faster, how sure that is, measured where, and what a
reader must know before believing the figures. The dashboard, the command line and reports say it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autosync.api.views.tuning_schemas import SETTLED_SPREAD, Tuning, TuningResult
from autosync.trials.request_names import (
    GPU_BY_MPS,
    GPU_IN_TURNS,
    PREDICTED_WAITS,
    SHORT_OF_CORES,
    UNSHAPED,
)
from autosync.units import counted, milliseconds, percent_in_words, scales_in_words

DETAILS = re.compile(r"\(([^,()]*),(?:[^()]|\([^()]*\))*\)")
"""What a launcher tells of itself beyond the first words, which a sentence has no room for."""
STATE_WORDS = {"paused": "is paused", "failed": "failed", "cancelled": "was cancelled"}
"""Of a tuning that does not run."""


@dataclass(frozen=True, slots=True)
class Headline:
    """sentence: what came of it, or how far it is. certainty: how sure that is, by the interval;
    of a tuning that ended with nothing to compare, what it did last. where: it was measured; all
    but the first may be empty."""

    sentence: str
    certainty: str = ""
    where: str = ""


def headline(
    tuning: Tuning, ddp_seconds: float | None, ran_on: str, place: int | None = None
) -> Headline:
    """ddp_seconds: before there is a result. ran_on: where trials ran, in words; empty before the
    first. place: in the queue."""
    what = f"{tuning.graph} on {tuning.cluster}"
    where = _where(tuning, ran_on) if ran_on else ""
    if tuning.result is not None:
        return Headline(*_answer(what, tuning.result), where)
    if tuning.state == "queued":
        turn = f"place {place} in the queue" if place else "in the queue"
        return Headline(f"{what} waits for a worker, {turn}", where=where)
    ended = STATE_WORDS.get(tuning.state)
    if ddp_seconds is None and tuning.best_seconds is not None:
        return Headline(
            f"{what} {ended or 'is being tuned'}; torch's DDP was not measured",
            f"Not confirmed: {milliseconds(tuning.best_seconds)} in the fastest trial.",
            where,
        )
    if tuning.best_seconds is None or ddp_seconds is None:
        done = ended or "is being tuned"
        nothing = f"{done}, nothing to compare yet"
        last = ""
        if tuning.state in ("failed", "cancelled"):
            nothing = f"{done} before anything could be compared"
            last = f"Before its end: {tuning.progress.message}." if tuning.progress.message else ""
        return Headline(f"{what} {nothing}", last, where)
    ratio = ddp_seconds / tuning.best_seconds
    faster = f"{ratio:.2f} times as fast as torch's DDP" if ratio > 1 else "nothing beats DDP"
    return Headline(
        f"{what} {ended or 'is being tuned'}; so far {faster}",
        f"Not confirmed: {milliseconds(tuning.best_seconds)} in one trial of the search, DDP took "
        f"{milliseconds(ddp_seconds)}.",
        where,
    )


def _answer(what: str, result: TuningResult) -> tuple[str, str]:
    if result.ddp_seconds is None:
        return _without_ddp(what, result)
    took = milliseconds(result.best_seconds)
    ddp = f"DDP takes {milliseconds(result.ddp_seconds)}"
    if result.keep_ddp and not result.repeats:
        return (
            f"{what}: keep torch's DDP, nothing was confirmed",
            f"The tuning ended before anything was repeated beside it; {ddp} an iteration in the "
            f"search{_of_limit(result)}.",
        )
    if result.keep_ddp:
        return (
            f"{what}: keep torch's DDP",
            f"No strategy was faster beyond doubt in {_repeats(result)}; {ddp} "
            f"an iteration{_of_limit(result)}.",
        )
    if result.ddp_is_too_large:
        return (
            f"{what}: torch's DDP is predicted not to fit into memory; the answer fits",
            f"It takes {took} an iteration{_of_limit(result)}. In trials, which need less memory "
            f"than training, {ddp}.",
        )
    return (
        f"{what} trains {result.speedup:.2f} times as fast as under torch's DDP",
        f"{_interval(result)}: {took} an iteration where {ddp}{_of_limit(result)}.",
    )


def _interval(result: TuningResult) -> str:
    return (
        f"{result.speedup_low:.2f} to {result.speedup_high:.2f} (percentiles 10 and 90 of "
        f"{_repeats(result)})"
    )


def _repeats(result: TuningResult) -> str:
    return counted(result.repeats, "interleaved repeat")


def _of_limit(result: TuningResult) -> str:
    """How near the answer is to what no strategy can beat."""
    percent = result.percent_of_limit
    if percent is None:
        return ""
    limit = milliseconds(result.limit_seconds)
    return f", {percent_in_words(percent)} of the limit of {limit}"


def _without_ddp(what: str, result: TuningResult) -> tuple[str, str]:
    """Where DDP could not be measured: what fits, or runs, is compared with the fastest known
    design that does."""
    ended = f"{what}: torch's DDP {result.what_ddp_did}"
    does = "runs" if result.ddp_fits else "fits"
    taken = f"{milliseconds(result.best_seconds)} an iteration{_of_limit(result)}"
    if not result.repeats:
        return f"{ended}; what {does} was not confirmed", f"{taken} in the search."
    if result.keeps_baseline:
        certainty = f"Nothing else that {does} was faster beyond doubt in {_repeats(result)}"
        return f"{ended}; {result.baseline} {does}", f"{certainty}: {taken}."
    return (
        f"{ended}; the answer {does} and trains {result.speedup:.2f} times as fast as under "
        f"{result.baseline}",
        f"{_interval(result)}: {taken}. {result.baseline} is the fastest known design that {does}.",
    )


def _where(tuning: Tuning, ran_on: str) -> str:
    scales = scales_in_words(tuning.byte_scale, tuning.time_scale)
    compute = f"kernels on {tuning.compute_device}" if tuning.compute == "kernels" else ""
    place = DETAILS.sub(r"(\1)", ran_on)
    return f"Measured on {', '.join(each for each in (place, compute, scales) if each)}."


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
    "A replay swaps nothing: ranks waited as long for swapped tensors as the simulator predicts, "
    "which is not a measurement. Tune in the running job (autosync.tune) to measure it.",
)

FEW_CORES = Caveat(
    "ranks share CPU cores",
    "The machine of the trials has fewer CPU cores for each rank than real hosts have for each "
    "GPU, so that copies, sums and updates take a larger share of these times than there. Trials "
    "that run slower (twice the --time-scale) halve this share, and take twice as long.",
)

NOT_SETTLED = Caveat(
    "not settled",
    "Iterations of the answer or of its baseline spread by more than "
    f"{SETTLED_SPREAD:.0%} (percentile 90 minus percentile 10, over the median): do not rely on "
    "this speed-up. Run the tuning again on a machine without other work.",
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
                (NOT_SHAPED, _ran_where(tuning, UNSHAPED)),
                (ESTIMATED, tuning.profile_source == "estimated"),
                (FEW_CORES, _ran_where(tuning, SHORT_OF_CORES)),
                (WAITS_PREDICTED, _ran_where(tuning, PREDICTED_WAITS)),
                (SHARED_BY_MPS, _ran_where(tuning, GPU_BY_MPS)),
                (SHARED_IN_TURNS, _ran_where(tuning, GPU_IN_TURNS)),
                (NOT_SETTLED, tuning.result is not None and not tuning.result.settled),
            )
            if holds
        )
        for tuning in tunings
    }


def _ran_where(tuning: Tuning, words: str) -> bool:
    """Whether a trial of it ran on what is described so, wherever it was asked to run."""
    return any(words in launcher for launcher in tuning.ran_on)
