"""The ablations of the replayed contest: by what each chooses its next trials."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.random import Generator

from autosync.population import Population, concatenate
from autosync.search.edits.local_search import searched_from
from autosync.search.loop.acquisition import promise_of
from autosync.search.loop.earned_designs import likeliest
from autosync.search.loop.message_equality import message_shares
from autosync.search.loop.selection import select
from autosync.search.loop.settings import Settings
from autosync.search.loop.shortlists import parents_among
from autosync.search.space import Space
from autosync.simulator.fitting.iteration_costs import MODEL_NOISE
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import MemberKind, Recipe, make_model
from autosync.simulator.learned.training import pretrained
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.contest.contest_pools import F64, I64, ContestPool

Choice = Literal["random", "unlike", "predicted", "genetic"]
Untaught = Literal["analytic", "timeline"]

USUAL: tuple[MemberKind, ...] = ("gaussian", "trees")
"""Members of the simulator that learns in seconds."""
CHILDREN = 1024
"""Strategies that a genetic search looks at in a round."""
SURVIVORS = 256
"""Of these, the fastest."""
FIRST_PARENTS = 8
"""Random ones with which it begins where nothing was tried."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """How a search chooses. members: of the simulator that learns; none: `untaught` predicts, and
    where nothing predicts that is not read. transferred: it begins with what the domains of other
    models taught.
    """

    name: str
    choice: Choice
    untaught: Untaught = "timeline"
    members: tuple[MemberKind, ...] = ()
    transferred: bool = False

    @property
    def beside_designs(self) -> bool:
        """Whether it is played with hand-designed strategies, too: the timeline, and what a tuning
        uses."""
        return self.choice == "predicted" and (
            self.members == USUAL or (not self.members and self.untaught == "timeline")
        )

    @property
    def networks(self) -> bool:
        """Whether LSTM or GAT are in it, which take minutes to learn."""
        return bool({"lstm", "gat"} & set(self.members))


def _learned(name: str, *members: MemberKind) -> tuple[Ablation, Ablation]:
    return (
        Ablation(name, "predicted", members=members),
        Ablation(f"{name}, transferred", "predicted", members=members, transferred=True),
    )


RANDOM, UNLIKE, LEARNED = "random", "no simulator", "process and trees, transferred"
ABLATIONS = (
    Ablation(RANDOM, "random"),
    Ablation(UNLIKE, "unlike"),
    Ablation("genetic", "genetic"),
    Ablation("genetic, transferred", "genetic", members=USUAL, transferred=True),
    Ablation("analytic", "predicted", "analytic"),
    Ablation("timeline", "predicted"),
    *_learned("process", "gaussian"),
    *_learned("trees", "trees"),
    *_learned("process and trees", *USUAL),
    *_learned("lstm", "lstm"),
    *_learned("gat", "gat"),
    *_learned("ensemble", "gaussian", "trees", "lstm", "gat"),
)
"""`no simulator` takes what is least alike, as the thesis' AutoSync (-s) does."""


def untrained(ablation: Ablation) -> LearnedSimulator:
    only = len(ablation.members) == 1
    recipe = Recipe(ablation.members[0]) if only else Recipe("ensemble", members=ablation.members)
    return LearnedSimulator(make_model(recipe, 0))


def taught(
    ablation: Ablation, pool: ContestPool, pools: Sequence[ContestPool]
) -> LearnedSimulator | None:
    """What the search begins with; None where nothing learns."""
    if not ablation.members:
        return None
    simulator = untrained(ablation)
    if not ablation.transferred:
        return simulator
    graph = pool.domain.graph.name
    others = [each.trials for each in pools if each.domain.graph.name != graph]
    return pretrained(simulator.model, others)


@dataclass(slots=True)
class Searcher:
    """One ablation in one pool. simulator: as `taught` made it; it learns in copies.

    known: what it predicted after the same trials before, for the sake of time.
    """

    ablation: Ablation
    pool: ContestPool
    simulator: LearnedSimulator | None
    known: dict[tuple[bytes, bytes], LearnedSimulator]

    def next_trials(self, rest: I64, tried: I64, seconds: F64, count: int, rng: Generator) -> I64:
        """`count` of the strategies `rest`. tried, seconds: so far, in their order."""
        match self.ablation.choice:
            case "random":
                return np.sort(rng.permutation(rest)[:count])
            case "unlike":
                first = rng.permutation(rest)  # of equals the first one is taken
                picks = self._selected(np.zeros(len(rest)), first, tried, count, alpha=1.0)
                return first[picks]
            case "genetic":
                return self._bred(rest, tried, seconds, count, rng)
            case "predicted":
                promise = self._promise(rest, tried, seconds)
                return rest[self._selected(promise, rest, tried, count, Settings().alpha)]

    def earned_designs(self, designs: I64, tried: I64, seconds: F64, most: int) -> I64:
        """At most so many of the untried designs that could be faster than all tried, as a tuning
        judges them; the likeliest first."""
        features, domain = self.pool.trials.features.take(designs), self.pool.domain
        if (simulator := self._after(tried, seconds)) is None:
            predicted, std = features.base_seconds, np.full(len(designs), MODEL_NOISE)
        else:
            predicted, std = simulator.predict_features(domain, features)
        return designs[likeliest(predicted, std, float(seconds.min()))][: max(most, 0)]

    def _selected(self, promise: F64, rows: I64, tried: I64, count: int, alpha: float) -> I64:
        shares = self.pool.shares
        return select(promise, shares[rows], count, alpha, shares[tried])

    def _promise(self, rows: I64, tried: I64, seconds: F64) -> F64:
        features, domain = self.pool.trials.features, self.pool.domain
        if (simulator := self._after(tried, seconds)) is None:
            analytic = self.ablation.untaught == "analytic"
            return (self.pool.analytic_seconds if analytic else features.base_seconds)[rows]
        predicted, std = simulator.predict_features(domain, features.take(rows))
        best = float(seconds.min()) if len(seconds) else None
        return promise_of(predicted, std, Settings().acquisition, best)

    def _after(self, tried: I64, seconds: F64) -> LearnedSimulator | None:
        """The simulator that has learned the trials."""
        if self.simulator is None or not len(tried):
            return self.simulator
        key = tried.tobytes(), seconds.tobytes()
        if key not in self.known:
            learner = deepcopy(self.simulator)
            trials = self.pool.trials.take(tried)
            learner.refit_features(type(trials)(trials.domain, trials.features, seconds))
            self.known[key] = learner
        return self.known[key]

    def _bred(self, rest: I64, tried: I64, seconds: F64, count: int, rng: Generator) -> I64:
        """What a genetic search (mutation and selection) over the tried strategies likes best,
        judged as in a tuning: the timeline breeds, what learns has the last word. Its children were
        not measured, so for each the measured strategy most like it stands in."""
        rows = tried[np.argsort(seconds, kind="stable")]
        domain, population = self.pool.domain, self.pool.population
        parents = parents_among(domain, population.take(rows))
        if not len(parents):
            parents = parents_among(domain, population.take(rng.permutation(rest)[:FIRST_PARENTS]))
        predict = partial(TimelineSimulator().predict, domain)
        born = int(rng.integers(2**31))
        children, _ = searched_from(domain, Space(), parents, predict, CHILDREN, born, SURVIVORS)
        if simulator := self._after(tried, seconds):
            predicted = simulator.predict(domain, children)
            children = children.take(np.argsort(predicted, kind="stable"))
        return stand_ins(self.pool, children, rest, count)


def stand_ins(pool: ContestPool, children: Population, rest: I64, count: int) -> I64:
    """For the children in their order the strategy of `rest` that has most of its messages in
    common, each of them once; `count` in all."""
    options = concatenate([children, pool.population.take(rest)])
    shares = message_shares(pool.domain, options)
    wanted, there = shares[: len(children)], shares[len(children) :]
    free, picks = np.ones(len(rest), dtype=np.bool_), list[int]()
    for child in range(min(len(children), max(count, 0))):
        alike = np.minimum(there, wanted[child]).sum(axis=1)
        pick = int(np.argmax(np.where(free, alike, -1.0)))
        free[pick] = False
        picks.append(pick)
    return rest[np.array(picks, dtype=np.int64)]
