"""Two tunings beside each other: what was asked, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from autosync.api.views import reports
from autosync.api.views.rankings import measured_ddp_seconds
from autosync.api.views.tuning_schemas import Tuning
from autosync.api.views.verdict import Caveat, Headline, caveats_of, headline


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
    """warning: why their times do not compare; empty where they do."""

    tunings: tuple[Tuning, ...]
    headlines: tuple[Headline, ...]
    caveats: dict[str, tuple[Caveat, ...]]
    facts: tuple[ComparedFact, ...]
    warning: str


def compared_tunings(session: Session, left: str, right: str) -> ComparedTunings:
    """Raises NotFound."""
    tunings = tuple(reports.tuning(session, each) for each in (left, right))
    ddp = [measured_ddp_seconds(session, tuning) for tuning in tunings]
    ran_on = [", ".join(tuning.ran_on) for tuning in tunings]
    return ComparedTunings(
        tunings,
        tuple(headline(*each) for each in zip(tunings, ddp, ran_on, strict=True)),
        caveats_of(tunings),
        tuple(
            ComparedFact(name, tuple(words(tuning) for tuning in tunings))
            for name, words in FACTS.items()
        ),
        _warning(*tunings),
    )


def _warning(left: Tuning, right: Tuning) -> str:
    if (left.graph_id, left.cluster_id) == (right.graph_id, right.cluster_id):
        return ""
    return "They are of different models or clusters: compare speed-ups, not times."


def _step(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.2f} ms"


FACTS: dict[str, Callable[[Tuning], str]] = {
    "State": lambda t: t.state,
    "Answer": lambda t: t.result.words if t.result else "–",
    "Fastest": lambda t: _step(t.result.best_seconds if t.result else t.best_seconds),
    "torch's DDP": lambda t: _step(t.result.ddp_seconds if t.result else None),
    "Speed-up": lambda t: f"{t.result.speedup:.3f}×" if t.result else "–",
    "Interval": lambda t: (
        f"{t.result.speedup_low:.3f}× to {t.result.speedup_high:.3f}×" if t.result else "–"
    ),
    "Model": lambda t: t.graph,
    "Batch size": lambda t: str(t.batch_size),
    "Cluster": lambda t: f"{t.cluster}, {t.world_size} devices",
    "Trials run on": lambda t: t.launcher,
    "Byte scale": lambda t: f"{t.byte_scale:g}",
    "Time scale": lambda t: f"{t.time_scale:g}",
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
