"""How many seconds a tuning still takes, by what its trials and its ranking took so far."""

from dataclasses import dataclass

from autosync.api.engine.phases import PHASES, TRIALS
from autosync.search.loop.confirm import FINALISTS, most_confirming_trials


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str
    done: int
    total: int
    at_seconds: float


class TimeLeft:
    """An estimate over the events of one tuning, given in their order.

    budget: trials of the search. repeats: of its confirmation. Times are
    seconds of any one clock, the caller's. Rankings between two rounds of the search count while
    they run, not before.
    """

    def __init__(self, budget: int, repeats: int):
        confirming = most_confirming_trials(min(budget, FINALISTS + 1), repeats)
        self._left = {"search": budget, "confirm": confirming}
        self._trial_seconds: dict[str, list[float]] = {phase: [] for phase in TRIALS}
        self._ranking_began: _Event | None = None
        self._last: _Event | None = None

    def see(self, kind: str, done: int, total: int, at_seconds: float) -> None:
        """An event of the tuning, and when it came."""
        event, last = _Event(kind, done, total, at_seconds), self._last
        if kind in TRIALS:
            if last and last.kind in (*TRIALS, "ranking"):  # else it waited for something before
                self._trial_seconds[kind].append(at_seconds - last.at_seconds)
            self._left[kind] = total - done
        if kind in ("confirm", "done"):
            self._left["search"] = 0
        if kind == "done":
            self._left["confirm"] = 0
        if kind == "ranking" and not (last and last.kind == "ranking" and last.done < done):
            self._ranking_began = event
        self._last = event

    def seconds(self, now_seconds: float) -> float | None:
        """Of the whole tuning; None before a trial was timed."""
        per_trial = self._seconds_per_trial()
        if per_trial is None or self._last is None:
            return None
        left = sum(self._left[phase] * per_trial[phase] for phase in TRIALS)
        if self._last.kind in TRIALS:  # the next one runs since then
            running = "search" if self._left["search"] else "confirm"
            left -= min(now_seconds - self._last.at_seconds, per_trial[running])
        return max(0.0, left + (self.ranking_seconds(now_seconds) or 0.0))

    def ranking_seconds(self, now_seconds: float) -> float | None:
        """Of the ranking of proposals that runs now; None where none does, or it just began."""
        began, last = self._ranking_began, self._last
        if began is None or last is None or last.kind != "ranking" or last.done <= began.done:
            return None
        each = (last.at_seconds - began.at_seconds) / (last.done - began.done)
        left = (last.total - last.done) * each
        return max(0.0, left - (now_seconds - last.at_seconds)) if left else None

    def words(self, now_seconds: float) -> str:
        """Both in words; empty where nothing is known. How long it will wait is never known."""
        if (seconds := self.seconds(now_seconds)) is not None and self._last is not None:
            waits = self._last.kind not in PHASES
            return f"about {seconds:.0f} s left{' after that' if waits else ''}"
        ranking = self.ranking_seconds(now_seconds)
        return "" if ranking is None else f"ranked in about {ranking:.0f} s"

    def _seconds_per_trial(self) -> dict[str, float] | None:
        """Means by phase; those of the other phase where one has no trial yet."""
        means = {
            phase: sum(seconds) / len(seconds)
            for phase, seconds in self._trial_seconds.items()
            if seconds
        }
        if not means:
            return None
        other = next(iter(means.values()))
        return {phase: means.get(phase, other) for phase in TRIALS}
