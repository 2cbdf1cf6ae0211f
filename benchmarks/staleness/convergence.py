"""Prints after how many iterations and seconds training on parameter servers with clocks reaches a
loss, with stragglers and without.

python -m benchmarks.staleness.convergence [--seeds 3]

The target of a task is the loss that training in step has after half of the iterations. Ranks are
processes on this machine that sleep in place of computing. The seconds are those of ranks that wait
for each other; links are not emulated.
"""

import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.extensions.staleness.clocked import ClockedAttachment
from autosync.extensions.staleness.document import late_by
from autosync.runtime.attached_models import ATTACHED
from benchmarks.measure import provenance
from benchmarks.output import option_parser
from benchmarks.staleness.learning_tasks import TASKS
from tests.autosync.runtime.cases import Case, domain, strategy
from tests.autosync.runtime.ranks import Ranks, ranks

COMPUTE_SECONDS = 0.004
DELAY_SECONDS, DELAYED_SHARE = 0.04, 0.25
"""Each iteration waits for the first; where there are stragglers, one rank, drawn anew, waits for
the second besides in that share of the iterations."""

STALENESS = (0, 1, 4, 16)
RANKS, ITERATIONS = 4, 300
CHECKS = 30
"""Losses noted in a run."""


@dataclass(frozen=True, slots=True)
class Setting:
    task: str
    staleness: int
    stragglers: bool
    seed: int


@dataclass(frozen=True, slots=True)
class LossCurve:
    """iterations, seconds, losses: of each check. age: mean of the values that rank 0 trained on,
    in iterations."""

    iterations: tuple[int, ...]
    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    age: float

    def reached(self, target: float) -> int | None:
        """The first check at which the loss is below, to stay there at the next."""
        below = [loss <= target for loss in self.losses]
        pairs = zip(below, [*below[1:], below[-1]], strict=True)
        return next((i for i, (now, after) in enumerate(pairs) if now and after), None)


def late_bundle(model: nn.Module, setting: Setting, world: int) -> Bundle:
    where = domain(model, world)
    case = Case(method="ps", groups=world)
    chosen = strategy(case, where.graph, world).carrying(*late_by(setting.staleness))
    return make_bundle(chosen, where)


def train(rank: int, world: int, setting: Setting) -> LossCurve:
    """What rank 0 sees; weights are copied at each check, and judged when the run is over."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    logging.getLogger("autosync").setLevel(logging.ERROR)  # which would tell of stragglers
    task = TASKS[setting.task]
    torch.manual_seed(setting.seed)
    model = task.model()
    optimizer = task.optimizer(model)
    autosync.distribute(model, optimizer, late_bundle(model, setting, world), allow_inexact=True)
    batches = np.random.default_rng((setting.seed, rank))
    straggling = np.random.default_rng((setting.seed, 1_000_000))
    noted, begun = [], time.monotonic()
    for iteration in range(1, ITERATIONS + 1):
        late = straggling.random() < DELAYED_SHARE and straggling.integers(world) == rank
        time.sleep(COMPUTE_SECONDS + DELAY_SECONDS * (late and setting.stragglers))
        optimizer.zero_grad()
        task.batch_loss(model, batches).backward()
        optimizer.step()
        if iteration % (ITERATIONS // CHECKS) == 0:
            values = [p.detach().clone() for p in model.parameters()]
            noted.append((iteration, time.monotonic() - begun, values))
    age = mean_age(model)
    autosync.detach(model)
    losses = []
    for _, _, values in noted:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), values, strict=True):
                parameter.copy_(value)
        losses.append(task.loss(model))
    taken, seconds, _ = zip(*noted, strict=True)
    return LossCurve(taken, seconds, tuple(losses), age)


def mean_age(model: nn.Module) -> float:
    attachment = ATTACHED.plans[id(model)]
    if not isinstance(attachment, ClockedAttachment):  # staleness 0 goes in step
        return 0.0
    ages = attachment.ages
    return sum(age * count for age, count in ages.items()) / ages.total()


@dataclass(frozen=True, slots=True)
class SettingSummary:
    """Of all seeds of a setting, medians. iterations, seconds: to the target; None where most runs
    do not reach it."""

    setting: Setting
    iterations: float | None
    seconds: float | None
    final_loss: float
    step_seconds: float
    age: float


def summarized(setting: Setting, runs: Sequence[LossCurve], target: float) -> SettingSummary:
    reached = [run.reached(target) for run in runs]
    most = sum(place is not None for place in reached) * 2 > len(runs)
    pairs = list(zip(runs, reached, strict=True))
    iterations = [np.inf if i is None else run.iterations[i] for run, i in pairs]
    seconds = [np.inf if i is None else run.seconds[i] for run, i in pairs]
    return SettingSummary(
        setting,
        float(np.median(iterations)) if most else None,
        float(np.median(seconds)) if most else None,
        float(np.median([run.losses[-1] for run in runs])),
        float(np.median([run.seconds[-1] / run.iterations[-1] for run in runs])),
        float(np.median([run.age for run in runs])),
    )


def report(pool: Ranks, task: str, seeds: int) -> None:
    """Every setting of a task; runs of a seed follow each other, so that drifts are shared."""
    settings = [
        Setting(task, staleness, stragglers, 0)
        for stragglers in (False, True)
        for staleness in STALENESS
    ]
    runs: dict[Setting, list[LossCurve]] = {setting: [] for setting in settings}
    for seed in range(seeds):
        print(f"{task}, seed {seed}", file=sys.stderr, flush=True)
        for setting, found in runs.items():
            seeded = replace(setting, seed=seed)
            found.append(pool.run(train, seeded)[0])
    in_step = runs[Setting(task, 0, False, 0)]
    target = float(np.median([run.losses[CHECKS // 2 - 1] for run in in_step]))
    print(f"\n{task}: target {target:.4g}\n\n{HEAD}", flush=True)
    for setting, found in runs.items():
        print(line(summarized(setting, found, target)), flush=True)


HEAD = (
    "| stragglers | s | mean age | ms an iteration | iterations to the target "
    "| seconds to it | last loss |\n|---|---|---|---|---|---|---|"
)


def line(row: SettingSummary) -> str:
    setting = row.setting
    reached = "never" if row.iterations is None else f"{row.iterations:.0f}"
    seconds = "" if row.seconds is None else f"{row.seconds:.2f}"
    cells = (
        "yes" if setting.stragglers else "no",
        str(setting.staleness),
        f"{row.age:.1f}",
        f"{1e3 * row.step_seconds:.1f}",
        reached,
        seconds,
        f"{row.final_loss:.4g}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in provenance().items()))
    with ranks(RANKS) as pool:
        for task in TASKS:
            report(pool, task, given.seeds)


if __name__ == "__main__":
    main()
