"""A collection of one small domain, on a launcher that answers from a function."""

from collections.abc import Callable
from pathlib import Path

from autosync.documents import to_json
from autosync.search.collect.collection_plan import CollectionPlan, CollectionTarget
from autosync.trials.contract import TrialError, TrialRequest, TrialResult, Workload
from tests.domains import domain_of as small_domain
from tests.domains import grid_cluster
from tests.search.killed import Killed

DOMAIN = small_domain(cluster=grid_cluster(4, gbps=0.05))
COUNT = 25

Seconds = Callable[[TrialRequest, int], float | None]


class ScriptedLauncher:
    """A cluster whose seconds are a function of the request and of how many trials came before."""

    name = "scripted"

    def __init__(self, seconds: Seconds, dies_after: int = 10**9) -> None:
        self.seconds = seconds
        self.dies_after = dies_after
        self.ran: list[str] = []
        self.closed = 0

    @property
    def description(self) -> str:
        return self.name

    def open(self, workload: Workload) -> "ScriptedLauncher":
        return self

    def run(self, request: TrialRequest) -> TrialResult:
        if len(self.ran) >= self.dies_after:
            raise Killed
        value = self.seconds(request, len(self.ran))
        self.ran.append(request.bundle.strategy.id)
        error = None if value else TrialError("crashed", "the worker fell over")
        iterations = (value,) * request.iterations if value else ()
        return TrialResult(request.key, iterations, value, 0.0, error, "scripted", 1.0, 1.0)

    def close(self) -> None:
        self.closed += 1


def steady(request: TrialRequest, number: int) -> float:
    return 0.1 + int(request.bundle.strategy.id[:4], 16) / 1e6


def prepared(folder: Path, occasions: int = 1) -> CollectionPlan:
    """A plan whose one domain was probed before."""
    (folder / "targets").mkdir(parents=True)
    (folder / "targets" / "small.json").write_text(to_json(DOMAIN))
    target = CollectionTarget("small", "resnet50", "example-4x1", 1.0, "1", occasions=occasions)
    return CollectionPlan((target,), strategies=COUNT, seed=3)


def silent(text: str) -> None:
    pass
