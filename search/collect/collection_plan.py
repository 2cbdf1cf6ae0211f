"""What a collection measures: the plan file and the domains it describes."""

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from autosync.cluster import Cluster
from autosync.cluster.cluster_file import load_cluster, strict_yaml
from autosync.documents import STRICT, from_data
from autosync.domain import Domain, optimizer_named
from autosync.errors import InvalidInput, NotFound
from autosync.graph import ModelGraph
from autosync.models import bundled
from autosync.profiling import profile_from_step_seconds

LEAST = {"occasions": 1, "warmup": 0, "iterations": 1, "strategies": 1, "picks": 0}
"""Of the numbers of a target."""


@dataclass(frozen=True, slots=True)
class CollectionTarget:
    """A domain to measure, and the testbed's scales.

    ring_over_compute: seconds of a ring all-reduce of the whole model at the slowest NIC's rate
        over those of forward and backward on the fastest device.
    byte_scale, time_scale: of the testbed; fractions may be written as `1/32`.
    occasions: how often everything is measured, other domains lying between.
    warmup, iterations: of a pass. Where links are always busy, the first two iterations are short,
        since part of their messages is sent in the next ones. A large time_scale with few
        iterations repeats better than the reverse in the same time.
    strategies: of this domain, where it is not the plan's number.
    picks: strategies that searches choose, measured and chosen by `benchmarks/picks.py`.
    """

    name: str
    model: str
    cluster: str
    ring_over_compute: float
    byte_scale: str
    time_scale: str = "1"
    optimizer: str = "momentum"
    occasions: int = 1
    warmup: int = 2
    iterations: int = 5
    strategies: int | None = None
    picks: int = 0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def scales(self) -> tuple[float, float]:
        return _fraction(self, "byte_scale"), _fraction(self, "time_scale")


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """strategies: of each domain, hand-designed ones included. seed: of the sampled ones and of
    the order of trials.

    pick_rounds, pick_sources, proposals: read by `benchmarks/picks.py`.
    """

    domains: tuple[CollectionTarget, ...]
    strategies: int = 220
    seed: int = 0
    pick_rounds: int = 5
    pick_sources: tuple[str, ...] = ()
    proposals: int = 30_000
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        names = [target.name for target in self.domains]
        for name in names:
            if names.count(name) > 1:
                raise _refused("domains", name, "stands twice in the plan", "Use each name once.")
            if not name or Path(name).name != name:
                raise _refused("domains", name, "names no file", "Use a name without slashes.")
        for name in ("strategies", "pick_rounds", "proposals"):
            if getattr(self, name) < 1:
                raise _refused(name, getattr(self, name), "is below 1", "Ask for one at least.")
        if not self.domains:
            raise _refused("domains", [], "is empty", "Name one at least.")

    def strategies_of(self, target: CollectionTarget) -> int:
        """How many of a domain, picks not counted."""
        return self.strategies if target.strategies is None else target.strategies


def load_plan(file: Path) -> CollectionPlan:
    """The plan of a YAML file.

    Raises:
        NotFound: there is no such file. InvalidInput: it is no plan; names the entry.
    """
    try:
        data = strict_yaml(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        raise NotFound(
            f"there is no collection plan {str(file)!r}.", thing="plan", value=str(file)
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _refused("plan", str(file), f"cannot be read: {error}", "Write YAML.") from None
    entries = data.get("domains") if isinstance(data, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):  # YAML reads 1 as a number and 1/32 as text
            entry.update({k: str(entry[k]) for k in ("byte_scale", "time_scale") if k in entry})
    return from_data(CollectionPlan, data, str(file))


def domain_of(target: CollectionTarget) -> Domain:
    """The target's domain, its communication costs assumed.

    Raises:
        NotFound: no such model or cluster. InvalidInput: a number or the optimizer is out of range.
    """
    if not target.ring_over_compute > 0:
        raise _refused(
            "ring_over_compute", target.ring_over_compute, "is not positive", "Use 0.5 to 3."
        )
    for name, least in LEAST.items():
        value = getattr(target, name)
        if value is not None and value < least:
            raise _refused(name, value, f"is below {least}", f"Use {least} or more.")
    graph, cluster = bundled(target.model), load_cluster(target.cluster)
    optimizer = optimizer_named(target.optimizer)
    compute = ring_seconds(graph, cluster) / target.ring_over_compute
    return Domain(
        graph,
        cluster,
        profile_from_step_seconds(graph, compute, cluster.fastest_device_type),
        optimizer,
    )


def ring_seconds(graph: ModelGraph, cluster: Cluster) -> float:
    """A ring all-reduce of the whole model at the slowest NIC's payload rate."""
    ranks = cluster.world_size
    slowest = float(cluster.nic_bytes_per_second().min())
    return 2 * (ranks - 1) / ranks * graph.size_bytes / slowest


def select_targets(plan: CollectionPlan, names: tuple[str, ...]) -> CollectionPlan:
    """The plan with the named domains alone; all of them without names.

    Raises:
        InvalidInput: a name is not in the plan.
    """
    known = [target.name for target in plan.domains]
    for name in names:
        if name not in known:
            raise _refused("domains", name, "is not in the plan", f"It has {', '.join(known)}.")
    targets = tuple(t for t in plan.domains if not names or t.name in names)
    return replace(plan, domains=targets)


def _fraction(target: CollectionTarget, field: str) -> float:
    text: str = getattr(target, field)
    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        value = 0.0
    if not value > 0:
        raise _refused(
            f"{target.name}.{field}", text, "is no positive number", "Write 1/32 or 0.03125."
        )
    return value


def _refused(thing: str, value: object, why: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"{thing} {value!r} {why}.", thing=thing, value=value, remedy=remedy)
