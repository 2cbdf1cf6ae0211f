"""Tunings beside each other: what was asked, what came of it, and how they converged."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from autosync.api.views import reports
from autosync.api.views.charts import Axis, Chart, Plot, Rule, Series
from autosync.api.views.dashboard.trial_points import TrialPoint, best_so_far, trial_points
from autosync.api.views.prediction_errors import predicted_words
from autosync.api.views.rankings import measured_ddp_seconds, ranked_strategy
from autosync.api.views.tuning_schemas import Tuning
from autosync.api.views.verdict import DETAILS, Caveat, Headline, caveats_of, headline
from autosync.errors import InvalidInput
from autosync.units import counted, fraction_in_words, milliseconds, scales_in_words

MOST_COMPARED = 6
COLOURS = ("accent", "series-2", "good", "lane-value", "lane-local-reduce", "lane-deal")
"""Of the lines, one for each tuning."""


@dataclass(frozen=True, slots=True)
class ComparedFact:
    """words: of each thing that is compared."""

    name: str
    words: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.words)) > 1


@dataclass(frozen=True, slots=True)
class ComparedTunings:
    """warning: why their times do not compare; empty where they do. convergence: None before the
    first trial of any."""

    tunings: tuple[Tuning, ...]
    headlines: tuple[Headline, ...]
    caveats: dict[str, tuple[Caveat, ...]]
    facts: tuple[ComparedFact, ...]
    warning: str
    convergence: Chart | None


def compared_tunings(session: Session, tuning_ids: Sequence[str]) -> ComparedTunings:
    """
    Raises:
        InvalidInput: fewer than two tunings, or more than MOST_COMPARED. NotFound: no such tuning.
    """
    ids = list(dict.fromkeys(tuning_ids))
    if not 2 <= len(ids) <= MOST_COMPARED:
        raise InvalidInput(
            f"{len(ids)} tuning{' was' if len(ids) == 1 else 's were'} chosen to be compared.",
            thing="tuning",
            value=len(ids),
            remedy=f"Choose 2 to {MOST_COMPARED} in the list of tunings.",
        )
    tunings = tuple(reports.tuning(session, each) for each in ids)
    ddp = [measured_ddp_seconds(session, tuning) for tuning in tunings]
    ran_on = [", ".join(tuning.ran_on) for tuning in tunings]
    alike = {(tuning.graph_id, tuning.cluster_id, tuning.accumulate) for tuning in tunings}
    same = len(alike) == 1
    warning = (
        "They are of different models or clusters, or differ in the batches per update: compare "
        "speed-ups, not times."
    )
    trials = [trial_points(session, tuning.id) for tuning in tunings]
    return ComparedTunings(
        tunings,
        tuple(headline(*each) for each in zip(tunings, ddp, ran_on, strict=True)),
        caveats_of(tunings),
        (
            *_facts(OUTCOMES, tunings),
            ComparedFact("torch's DDP", tuple(map(milliseconds, ddp))),
            *_facts(FACTS, tunings),
            ComparedFact("Answer predicted", tuple(_predicted(session, each) for each in tunings)),
        ),
        "" if same else warning,
        convergences(tunings, trials, ddp, in_seconds=same) if any(trials) else None,
    )


def _facts(
    named: Mapping[str, Callable[[Tuning], str]], tunings: Sequence[Tuning]
) -> Iterator[ComparedFact]:
    for name, words in named.items():
        yield ComparedFact(name, tuple(words(tuning) for tuning in tunings))


def _predicted(session: Session, tuning: Tuning) -> str:
    """What the answer was predicted to take, and where its measurement was expected."""
    result = tuning.result
    answer = ranked_strategy(session, tuning.id, result.strategy_id) if result else None
    if answer is None:
        return "–"
    return predicted_words(answer.predicted_seconds, answer.low_seconds, answer.high_seconds)


def convergences(
    tunings: Sequence[Tuning],
    trials: Sequence[Sequence[TrialPoint]],
    ddp_seconds: Sequence[float | None],
    in_seconds: bool,
) -> Chart:
    """The best so far of each tuning on one chart: its step time, or where times do not compare
    how many times as fast as DDP of the same tuning that is.

    trials, ddp_seconds: of each tuning; one without trials, or without DDP where it is needed, has
        no line.
    """
    series, rows, told = [], [], []
    for tuning, points, ddp, colour in zip(tunings, trials, ddp_seconds, COLOURS, strict=False):
        name = f"{tuning.graph} on {tuning.cluster}, {tuning.id[:8]}"
        best = best_so_far(points)
        fastest = milliseconds(best[-1] if best else None)
        rows.append((name, str(len(points)), fastest, milliseconds(ddp)))
        told.append(f"{name}: {fastest} after {counted(len(points), 'trial')}")
        if not points or (ddp is None and not in_seconds):
            continue
        shown = [seconds * 1e3 if in_seconds else (ddp or 0.0) / seconds for seconds in best]
        words = [milliseconds(s) for s in best] if in_seconds else [f"{r:.2f}×" for r in shown]
        steps = tuple(
            (point.position + 1, value, f"{name}, trial {point.position + 1}: {text}")
            for place, (point, value, text) in enumerate(zip(points, shown, words, strict=True))
            if place in (0, len(shown) - 1) or value != shown[place - 1]
        )
        series.append(Series(name, colour, "steps", steps))
    y = Axis("ms an iteration", "ms") if in_seconds else Axis("times as fast as its DDP", "×")
    return Chart(
        "convergence",
        "Convergence",
        "the best so far by medians, after each trial",
        "; ".join(told),
        (Plot(Axis("trial"), y, tuple(series), () if in_seconds else (Rule("y", 1.0, "DDP"),)),),
        ("Tuning", "Trials", "Best", "DDP"),
        tuple(rows),
    )


def _speedup(tuning: Tuning) -> str:
    result = tuning.result
    if result is None or result.keep_ddp:
        return "–" if result is None else "keep DDP"
    over = f" over {result.baseline}" if result.ddp_seconds is None else ""
    return f"{result.speedup:.3f}×{over}"


def _ran_on(tuning: Tuning) -> str:
    """Without what differs from one start to the next, such as how exact the links' rates were."""
    places = dict.fromkeys(DETAILS.sub(r"(\1)", each) for each in tuning.ran_on)
    return ", ".join(places) or tuning.launcher


OUTCOMES: dict[str, Callable[[Tuning], str]] = {
    "State": lambda t: t.state,
    "Answer": lambda t: t.result.words if t.result else "–",
    "Fastest": lambda t: milliseconds(t.result.best_seconds if t.result else t.best_seconds),
    "Speed-up": _speedup,
    "Interval": lambda t: (
        "–"
        if t.result is None or t.result.keep_ddp or t.result.keeps_baseline
        else f"{t.result.speedup_low:.3f}× to {t.result.speedup_high:.3f}×"
    ),
}
FACTS: dict[str, Callable[[Tuning], str]] = {
    "Model": lambda t: t.graph,
    "Batch size": lambda t: str(t.batch_size),
    "Batches per update": lambda t: str(t.accumulate),
    "Space": lambda t: t.space or "plans",
    "Cluster": lambda t: f"{t.cluster}, {counted(t.world_size, 'device')}",
    "Trials ran on": _ran_on,
    "Bytes moved in trials": lambda t: (
        "all" if t.byte_scale == 1 else f"{fraction_in_words(t.byte_scale)} of the model's"
    ),
    "Speed of trials": lambda t: scales_in_words(1.0, t.time_scale) or "not scaled",
    "Compute": lambda t: f"{t.compute}, {t.profile_source}",
    "Ranked by": lambda t: (
        t.simulator + ("" if t.simulator_version is None else f", version {t.simulator_version}")
    ),
    "Budget": lambda t: str(t.settings["budget"]),
    "Proposals a round": lambda t: f"{t.settings['proposals']:,}",
    "Repeats": lambda t: str(t.settings["repeats"]),
    "Seed": lambda t: str(t.settings["seed"]),
    "Trials": lambda t: str(t.progress.trials),
}
"""What is compared, and how it reads; words that differ are marked."""
