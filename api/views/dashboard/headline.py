"""A tuning in a sentence: what, how much faster, how sure, measured where."""

import re
from dataclasses import dataclass

from autosync.api.views.schemas import Tuning, TuningResult

DETAILS = re.compile(r"\(([^,()]*),[^()]*\)")
"""What a launcher tells of itself beyond the first words, which a sentence has no room for."""
STATE_WORDS = {"paused": "is paused", "failed": "failed", "cancelled": "was cancelled"}
"""Of a tuning that does not run."""


@dataclass(frozen=True, slots=True)
class Headline:
    """sentence: what came of it, or how far it is. certainty: how sure that is, by the interval.
    where: it was measured; all but the first may be empty."""

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
    if tuning.best_seconds is None or ddp_seconds is None:
        return Headline(f"{what} {ended or 'is being tuned'}, nothing to compare yet", where=where)
    ratio = ddp_seconds / tuning.best_seconds
    faster = f"{ratio:.2f} times as fast as torch's DDP" if ratio > 1 else "nothing beats DDP"
    return Headline(
        f"{what} {ended or 'is being tuned'}; so far {faster}",
        f"Not confirmed: {_step(tuning.best_seconds)} in one trial of the search, DDP took "
        f"{_step(ddp_seconds)}.",
        where,
    )


def _answer(what: str, result: TuningResult) -> tuple[str, str]:
    repeats = f"{result.repeats} interleaved repeats"
    interval = f"{result.speedup_low:.2f} to {result.speedup_high:.2f} times"
    if result.ddp_seconds is None:
        return _without_ddp(what, result)
    if result.keep_ddp:
        return (
            f"{what}: keep torch's DDP",
            f"No strategy was faster beyond doubt in {repeats}; DDP takes "
            f"{_step(result.ddp_seconds)} an iteration{_of_limit(result)}.",
        )
    return (
        f"{what} trains {result.speedup:.2f} times as fast as under torch's DDP",
        f"{interval} as fast (percentiles 10 and 90 of {repeats}): {_step(result.best_seconds)} an "
        f"iteration where DDP takes {_step(result.ddp_seconds)}{_of_limit(result)}.",
    )


def _of_limit(result: TuningResult) -> str:
    """How near the answer is to what no strategy can beat."""
    if result.limit_seconds is None:
        return ""
    return f", {result.percent_of_limit:.0f} % of the limit of {_step(result.limit_seconds)}"


def _without_ddp(what: str, result: TuningResult) -> tuple[str, str]:
    """Where DDP could not be measured: what fits, or runs, is compared with the fastest known
    design that does."""
    ended = f"{what}: torch's DDP {result.what_ddp_did}"
    does = "runs" if result.ddp_fits else "fits"
    taken = f"{_step(result.best_seconds)} an iteration{_of_limit(result)}"
    if not result.repeats:
        return f"{ended}; what {does} was not confirmed", f"{taken} in the search."
    if result.keeps_baseline:
        certainty = f"Nothing else that {does} was faster beyond doubt in {result.repeats}"
        return f"{ended}; {result.baseline} {does}", f"{certainty} interleaved repeats: {taken}."
    return (
        f"{ended}; the answer {does} and trains {result.speedup:.2f} times as fast as under "
        f"{result.baseline}",
        f"{result.speedup_low:.2f} to {result.speedup_high:.2f} times as fast (percentiles 10 and "
        f"90 of {result.repeats} interleaved repeats): {taken}. {result.baseline} is the fastest "
        f"known design that {does}.",
    )


def _where(tuning: Tuning, ran_on: str) -> str:
    scales = [
        f"{name} {scale:g}"
        for name, scale in (("byte scale", tuning.byte_scale), ("time scale", tuning.time_scale))
        if scale != 1
    ]
    compute = f"kernels on {tuning.compute_device}" if tuning.compute == "kernels" else ""
    place = DETAILS.sub(r"(\1)", ran_on)
    return f"Measured on {', '.join([place, *([compute] if compute else []), *scales])}."


def _step(seconds: float) -> str:
    return f"{seconds * 1e3:,.{2 if seconds < 0.01 else 1}f} ms"
