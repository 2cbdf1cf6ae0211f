"""Measures a dataset: many strategies of several domains, stopping anywhere and going on.

Of every domain the hand-designed strategies and random ones; each in two passes, every pass over
all strategies in an order of its own, so that a slow hour does not fall on one strategy alone;
a third where the two differ by more than `PASS_TOLERANCE`. After every block of `CANARY_EVERY`
trials one known strategy runs, the canary: where it is off the median of all that the domain's
canaries took before, and off it again at once, the block is measured again.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autosync.bundle import bundle
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.files import written_whole
from autosync.population import decode
from autosync.strategy import Strategy
from autosync.trials.contract import Launcher, Pool, TrialRequest, TrialResult, Workload
from autosync.trials.pool import PASS_TOLERANCE
from autosync.trials.rate_probes import InaccurateLink
from search import designs
from search.builders import hand_designed
from search.journal import CANARY, Journal, PassKey
from search.probing import probe_costs
from search.sampler import sample
from search.space import Space
from search.targets import CollectionPlan, Target, domain_of

CANARY_EVERY = 20
CANARY_TOLERANCE = 0.05
TIMEOUT_SECONDS = 60.0
OPENINGS = 6
PAUSE_SECONDS = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Chosen:
    origin: str
    strategy: Strategy


def collect(
    plan: CollectionPlan,
    folder: Path,
    launcher: Launcher,
    say: Say,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Measure what the folder's journal lacks, and write the dataset after every domain.

    All first occasions come before any second one. `stopped` is asked before every trial.

    Raises:
        NotSupported, InaccurateLink: as `launcher.open`.
    """
    run = _Run(plan, folder, Journal(folder), launcher, say, stopped)
    rounds = max(target.occasions for target in plan.domains)
    for occasion in range(1, rounds + 1):
        for target in plan.domains:
            if occasion > target.occasions or stopped():
                continue
            _measure_target(run, target, occasion)
            run.journal.checkpoint(kept_domains(folder))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the command: what `collect` was given, and what was measured before."""

    plan: CollectionPlan
    folder: Path
    journal: Journal
    launcher: Launcher
    say: Say
    stopped: Callable[[], bool]


def _measure_target(run: _Run, target: Target, occasion: int) -> None:
    """All that is still to measure of one domain on one occasion, on one pool."""
    domain = _kept_domain(run, target)
    chosen = strategies_of(domain, run.plan.strategies, run.plan.seed)
    work = _Work(domain.id, occasion, tuple(chosen), run.plan.seed)
    if not work.pending(run.journal):
        return
    byte_scale, time_scale = target.scales
    run.say(f"{target.name}, occasion {occasion}: {len(chosen)} strategies")
    pool = _opened(run, Workload(domain, byte_scale=byte_scale, time_scale=time_scale))
    try:
        measuring = _Measuring(run, target, domain, occasion, pool, len(chosen))
        while todo := work.pending(run.journal):
            for start in range(0, len(todo), CANARY_EVERY):
                if run.stopped():
                    return
                measuring.block(todo[start : start + CANARY_EVERY])
    finally:
        pool.close()


def _opened(run: _Run, workload: Workload) -> Pool:
    """A pool. Links that are off the cluster file are looked at again some times: what loads a
    machine for a moment must not end hours of work."""
    for again in reversed(range(OPENINGS)):
        try:
            return run.launcher.open(workload)
        except InaccurateLink as error:
            if not again or run.stopped():
                raise
            run.say(f"  {error.message} Again in {PAUSE_SECONDS:.0f} s, {again} times at most.")
            time.sleep(PAUSE_SECONDS)
    raise AssertionError("the last opening returns or raises")


def _kept_domain(run: _Run, target: Target) -> Domain:
    """The target's domain with probed costs, probed once and kept in FOLDER/targets."""
    file = run.folder / "targets" / f"{target.name}.json"
    if file.is_file():
        return from_json(Domain, file.read_text(), source=str(file))
    domain = domain_of(target)
    run.say(f"{target.name}: measuring what messages cost")
    found = probe_costs(run.launcher, domain.cluster, *target.scales, say=run.say)
    domain = replace(domain, cluster=found.cluster)
    file.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(file) as draft:
        draft.write_text(to_json(domain) + "\n")
    return domain


def kept_domains(folder: Path) -> list[Domain]:
    """Every target's domain that has been probed."""
    files = sorted((folder / "targets").glob("*.json"))
    return [from_json(Domain, file.read_text(), source=str(file)) for file in files]


def strategies_of(domain: Domain, count: int, seed: int) -> list[Chosen]:
    """Hand-designed strategies, then sampled ones up to `count`, no two alike."""
    named = [Chosen(name, strategy) for name, strategy in hand_designed(domain, Space())]
    found = {chosen.strategy.id: chosen for chosen in reversed(named)}
    found = dict(reversed(found.items()))
    population = sample(domain, Space(), 0, 2 * count, seed)
    for index in range(len(population)):
        if len(found) >= count:
            break
        strategy = decode(population, index, domain)
        found.setdefault(strategy.id, Chosen("sampled", strategy))
    return list(found.values())[:count]


@dataclass(frozen=True, slots=True)
class _Work:
    """What there is to measure on one occasion of a domain."""

    domain_id: str
    occasion: int
    chosen: tuple[Chosen, ...]
    seed: int

    def pending(self, journal: Journal) -> list[tuple[PassKey, Chosen]]:
        """What is missing of the first pass that is not complete, in that pass's order."""
        for number in (1, 2, 3):
            order = list(self.chosen)
            random.Random(f"{self.seed}/{self.domain_id}/{self.occasion}/{number}").shuffle(order)
            keys = [PassKey(self.domain_id, self.occasion, number, c.strategy.id) for c in order]
            todo = [
                (key, chosen)
                for key, chosen in zip(keys, order, strict=True)
                if key not in journal and (number < 3 or _differ(journal, key))
            ]
            if todo:
                return todo
        return []


def _differ(journal: Journal, key: PassKey) -> bool:
    """Whether the first two passes ran and disagree."""
    one, two = (journal.seconds(key._replace(number=number)) for number in (1, 2))
    return one is not None and two is not None and abs(one / two - 1) > PASS_TOLERANCE


@dataclass(slots=True)
class _Measuring:
    """Runs blocks of trials on a pool, each followed by a canary."""

    run: _Run
    target: Target
    domain: Domain
    occasion: int
    pool: Pool
    strategies: int
    _number: int = 0
    _seconds: float = 0.0

    def block(self, todo: list[tuple[PassKey, Chosen]]) -> None:
        """Measure, then the canary; where that has drifted twice, the block is in doubt."""
        done = []
        begun = time.monotonic()
        for key, chosen in todo:
            if self.run.stopped():
                return
            self._trial(key, chosen.origin, chosen.strategy)
            done.append(key)
        sound = self._sound() or self._sound()
        self._seconds += time.monotonic() - begun
        number = todo[0][0].number
        have = self.run.journal.count(self.domain.id, self.occasion, number)
        rate = self._number / self._seconds * 3600
        self.run.say(f"  pass {number}: {have} of {self.strategies}, {rate:.0f} passes an hour")
        if not sound and (doubted := self.run.journal.void(done)):
            self.run.say(f"  the canary has drifted: {len(doubted)} of them are measured again")

    def _sound(self) -> bool:
        """Run the canary; whether it agrees with the median of those before it, where there are
        three."""
        earlier = self.run.journal.canary_seconds(self.domain.id)
        strategy = designs.all_reduce_25mb(self.domain)
        key = PassKey(self.domain.id, self.occasion, CANARY, strategy.id)
        seconds = self._trial(key, "canary", strategy).step_seconds
        if seconds is None:
            return False
        return len(earlier) < 3 or abs(seconds / float(np.median(earlier)) - 1) <= CANARY_TOLERANCE

    def _trial(self, key: PassKey, origin: str, strategy: Strategy) -> TrialResult:
        self._number += 1
        request = TrialRequest(
            key=f"{key}/{self._number}",
            bundle=bundle(strategy, self.domain),
            warmup=self.target.warmup,
            iterations=self.target.iterations,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        measured_at = time.time()
        result = self.pool.run(request)
        self.run.journal.record(key, strategy, origin, measured_at, result)
        return result
