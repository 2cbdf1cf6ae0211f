"""Candidates that place modules, made of the most promising strategies that do not: by a greedy
proposer, and by the policy (`policy`) where torch-geometric is there and no strategy fits.

The greedy proposer places the modules with many bytes for little work, one after the other,
wherever the simulator predicts the shortest iteration.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import sqrt

import numpy as np

from autosync.cancellation import check_cancelled
from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.extensions.placement.document import (
    PlacedModule,
    PlacedModules,
    Placement,
    evenly,
    in_proportion,
    modules_of,
    placed_module,
)
from autosync.extensions.placement.placeable_modules import PlaceableModule, modules_to_place
from autosync.population import encode
from autosync.search.designs.building_blocks import ordered
from autosync.search.designs.design_table import hand_designed, lies_in
from autosync.search.domain_facts import rank_speeds
from autosync.search.extension_proposals import ProposalRequest, Proposer, Stop, no_stop
from autosync.search.loop.ranking import coarse_of
from autosync.search.loop.selection import distinct_rows
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Origin, Store
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.memory.peak_memory import device_memory_bytes, memory_of
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.simulator_contract import Simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllGather, AllReduce, Replica, Strategy, VariableChoice, whole
from autosync.verification import verify

BASES = 2
"""Strategies that modules are placed in."""

EVALUATIONS = 256
"""Predictions that the greedy proposer has for a base, and the policy for the best one; a tenth of
the proposals of a round at the most."""

LEAST_BYTES_SHARE = 0.01
"""Of the model's bytes: a smaller module is not worth sending samples to and fro."""

OUT_OF_MEMORY = 10.0
"""By which the reward of what does not fit is multiplied (HeteroG, section 4.1.3)."""

LEAST_GAIN = 0.005
"""Share of an iteration: a smaller gain is within the timeline's error."""


@dataclass(frozen=True, slots=True)
class EvaluatedPlacement:
    """excess: what ranks need beyond their devices' memory, over all memory; 0 where it fits."""

    strategy: Strategy
    step_seconds: float
    excess: float

    @property
    def fits(self) -> bool:
        return self.excess == 0.0

    @property
    def rank(self) -> tuple[float, float]:
        """To compare: what fits before what does not, then the faster; of what does not fit, first
        what comes nearer."""
        return self.excess, self.step_seconds

    def improves(self, other: "EvaluatedPlacement") -> bool:
        """Whether it fits better, or both fit and it is faster by `LEAST_GAIN`."""
        if not (self.fits and other.fits):
            return self.rank < other.rank
        return self.step_seconds < other.step_seconds * (1 - LEAST_GAIN)

    def reward(self, unit_seconds: float) -> float:
        """HeteroG's: the negative root of seconds an iteration, in `unit_seconds`. Out of memory it
        is that of the unit times ten, and lower the more is missing."""
        if self.fits:
            return -sqrt(self.step_seconds / unit_seconds)
        return -OUT_OF_MEMORY * (1 + self.excess)


@dataclass(slots=True)
class PlacementEvaluator:
    """Predicts seconds and memory. evaluations: strategies so far. stop: ends proposers before
    their budget."""

    domain: Domain
    simulator: Simulator
    stop: Stop = no_stop
    evaluations: int = 0

    def evaluate(self, strategies: Sequence[Strategy]) -> list[EvaluatedPlacement]:
        """Raises Cancelled."""
        check_cancelled()
        population = encode(list(strategies), self.domain)
        self.evaluations += len(population)
        seconds = self.simulator.predict(self.domain, population)
        memory, excess = device_memory_bytes(self.domain), np.zeros(len(population))
        if (limited := np.isfinite(memory)).any():
            plans = compile_plans_fast(population, self.domain)
            needed = memory_of(self.domain).peak_bytes(plans, population)[:, limited]
            beyond = np.maximum(needed - memory[limited], 0.0)
            excess = beyond.sum(axis=1) / memory[limited].sum()
        triples = zip(strategies, seconds.tolist(), excess.tolist(), strict=True)
        return [EvaluatedPlacement(*triple) for triple in triples]


class PlacementProposer(Proposer):
    def lies_in(self, strategy: Strategy, space: Space) -> bool:
        return space.placement

    def can_fit(self, domain: Domain, space: Space, stop: Stop) -> bool:
        simulator = TimelineSimulator()
        request = ProposalRequest(domain, space, simulator, (), Settings(), stop=stop)
        return bool(self.candidates(request))

    def candidates(self, request: ProposalRequest) -> list[Candidate]:
        """None with the messages of another or of one that was tried.

        bases: those with a placement lend it to those without. Where there are none, since no
        strategy fits, designs that do not fit; there the policy is asked, too: elsewhere it found
        nothing that the greedy proposer and the sampler do not (docs/placement.md).
        """
        domain, space, settings = request.domain, request.space, request.settings
        if not can_be_placed(domain, space):
            return []
        refused = refused_modules(request.store) if request.store is not None else set()
        left_alone = {*refused, *(pin.variable for pin in space.pins)}
        evaluator = PlacementEvaluator(domain, coarse_of(request.simulator), request.stop)
        plain = [base for base in request.bases if may_be_placed(base)]
        placements = [modules for base in request.bases if (modules := modules_of(base))]
        chosen = unlike_shares(plain or _designs(domain, space, evaluator))
        budget = max(1, min(EVALUATIONS, settings.proposals // 10))
        found: list[tuple[Origin, Strategy]] = [
            ("placed", place_greedily(evaluator, base, budget, left_alone=left_alone).strategy)
            for base in chosen
        ]
        found += [
            ("placed", with_placement(base, domain, modules))
            for base in chosen
            for modules in placements[:BASES]
        ]
        learns = not plain and not left_alone and find_spec("torch_geometric") is not None
        if learns and chosen and not request.stop():
            from autosync.extensions.placement.policy import PolicySettings, learned_placement

            of_policy = PolicySettings(seed=settings.seed)
            learned = learned_placement(evaluator, chosen[0], budget, of_policy)
            found.append(("placed_by_policy", learned.strategy))
        return _distinct(request, found)


PROPOSER = PlacementProposer()


def may_be_placed(strategy: Strategy) -> bool:
    """Whether modules can be placed in it: torch itself does not run it, and it carries nothing of
    an extension."""
    return not (strategy.run_by_torch or strategy.extensions)


def refused_modules(store: Store) -> set[str]:
    """Modules of placements whose trials were refused, without those that another trial placed:
    they mix samples, say, which not every graph shows."""
    kinds = {t.key: t.error.kind if t.error else None for t in store.trials()}
    refused: set[str] = set()
    sound: set[str] = set()
    for proposal in store.proposals():
        modules = {placed.module for placed in modules_of(proposal.candidate.strategy)}
        if proposal.key in kinds and kinds[proposal.key] in (None, "refused"):
            (sound if kinds[proposal.key] is None else refused).update(modules)
    return refused - sound


def can_be_placed(domain: Domain, space: Space) -> bool:
    """Deals run over gloo; ranks of a placed module all-reduce."""
    return space.placement and space.all_reduce and domain.cluster.backend == "gloo"


def unlike_shares(bases: Sequence[Strategy]) -> list[Strategy]:
    """At most `BASES`: the best of each division of the batch, then the best of the rest."""
    first: dict[tuple[Replica, ...], Strategy] = {}
    for base in bases:
        first.setdefault(base.replicas, base)
    chosen = list(first.values())
    return (chosen + [base for base in bases if base not in chosen])[:BASES]


def _designs(domain: Domain, space: Space, evaluator: PlacementEvaluator) -> list[Strategy]:
    """The fastest by prediction first, whether they fit or not."""
    made = [each for _, each in hand_designed(domain, space) if may_be_placed(each)]
    evaluated = evaluator.evaluate(made) if made else []
    return [each.strategy for each in sorted(evaluated, key=lambda each: each.step_seconds)]


def _distinct(
    request: ProposalRequest, found: Sequence[tuple[Origin, Strategy]]
) -> list[Candidate]:
    domain, simulator = request.domain, request.simulator
    sound = [(origin, each) for origin, each in found if _is_sound(each, domain, request.space)]
    if not sound:
        return []
    population = encode([each for _, each in sound], domain)
    scores = simulator.predict(domain, population)
    fitting = set(fitting_rows(domain, population).tolist())
    rows = distinct_rows(domain, population, digests_of_strategies(domain, request.tried))
    candidates = [
        Candidate(
            replace(sound[row][1], name=""), float(scores[row]), simulator.name, sound[row][0]
        )
        for row in rows.tolist()
        if row in fitting and np.isfinite(scores[row])
    ]
    return sorted(candidates, key=lambda each: each.predicted_seconds)


def _is_sound(strategy: Strategy, domain: Domain, space: Space) -> bool:
    """Whether it places anything, runs and lies in the space."""
    try:
        verify(strategy, domain, allow_lossy=space.may_lose, allow_inexact=space.may_lag)
    except (InvalidStrategy, NotSupported):
        return False
    return bool(modules_of(strategy)) and lies_in(strategy, space)


def with_placement(strategy: Strategy, domain: Domain, placement: PlacedModules) -> Strategy:
    """Variables that some ranks do not hold are all-reduced whole by those that do, a message a
    module (gathered where their gradients are sparse); all others stay as they are.

    In an explicit order such a message takes the place of its variables' first.
    """
    above = 1 + max(shard.group for choice in strategy.choices for shard in choice.shards)
    groups: dict[tuple[str, bool, str], int] = {}
    places = iter(strategy.schedule.positions or (0,) * strategy.shards)
    choices: list[VariableChoice] = []
    keys: list[list[float]] = []
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        own = [float(next(places)) for _ in choice.shards]
        placed = placed_module(placement, variable.name)
        if placed is None or len(placed.ranks) == domain.world_size:
            choices.append(choice)
            keys.append(own)
            continue
        alike = (placed.module, variable.sparse, variable.dtype)
        group = groups.setdefault(alike, above + len(groups))
        shard = AllGather(group) if variable.sparse else AllReduce(group)
        choices.append(VariableChoice(variable.name, whole(variable.shape), (shard,)))
        keys.append([min(own)])
    made = replace(strategy.without(Placement), choices=tuple(choices), name="")
    made = made.carrying(Placement(placement)) if placement else made
    if strategy.schedule.order == "explicit":
        made = ordered(made, keys)
    return made.canonical()


def place_greedily(
    evaluator: PlacementEvaluator,
    base: Strategy,
    budget: int = 400,
    most_modules: int = 24,
    left_alone: Collection[str] = (),
) -> EvaluatedPlacement:
    """The best found from `base` (without a placement) in at most `budget` evaluations, and before
    the evaluator's `stop`; `base` itself where nothing is better.

    The heaviest by bytes of variables per FLOP come first, of those that hold a hundredth of the
    model's bytes. Each is tried on single devices, on subsets and in proportion to speed, beside
    those placed before it; the best place is kept where it gains. A second pass looks again at
    each, beside all others. left_alone: names of modules and variables; modules of these names, or
    that hold them, stay where they are.
    """
    domain = evaluator.domain
    candidates = _candidates(domain, most_modules, left_alone)
    stop = evaluator.evaluations + budget
    best = evaluator.evaluate([base])[0]
    for again in range(2):
        for module in candidates:
            left = stop - evaluator.evaluations
            if left <= 0 or evaluator.stop():
                return best
            own = list(_neighbours(domain, base, modules_of(best.strategy), module.name))[:left]
            if not own:  # every place of it is refused
                continue
            found = min(evaluator.evaluate(own), key=lambda each: each.rank)
            if found.improves(best):
                best = found
        if not modules_of(best.strategy) and not again:
            break
    return best


def _candidates(domain: Domain, most: int, left_alone: Collection[str]) -> list[PlaceableModule]:
    least = LEAST_BYTES_SHARE * domain.graph.size_bytes
    heavy = [
        each
        for each in modules_to_place(domain)
        if each.variable_bytes >= least
        and not any(f"{name}.".startswith(f"{each.name}.") for name in left_alone)
    ]
    return sorted(heavy, key=lambda each: -each.bytes_per_flop)[:most]


def _neighbours(
    domain: Domain, base: Strategy, placement: PlacedModules, module: str
) -> Iterator[Strategy]:
    """The strategy with the module in other places, and with it unplaced."""
    others = tuple(
        placed
        for placed in placement
        if placed.module != module
        and not placed.holds(module)
        and not placed.module.startswith(f"{module}.")
    )
    for placed in (None, *module_places(domain, module)):
        changed = others if placed is None else (*others, placed)
        if set(changed) == set(placement):
            continue
        strategy = with_placement(base, domain, changed)
        try:
            verify(strategy, domain, allow_lossy=True)  # what else the base does was its maker's
        except InvalidStrategy:  # every variable placed, say
            continue
        yield strategy


def module_places(domain: Domain, module: str) -> Iterator[PlacedModule]:
    """Each single device, the ranks of each kind of device and of each node evenly, and all ranks
    in proportion to speed where speeds differ."""
    for ranks in device_sets(domain):
        yield evenly(module, ranks)
    speeds = rank_speeds(domain)
    if max(speeds) > min(speeds):
        yield in_proportion(module, range(domain.world_size), speeds)


def device_sets(domain: Domain) -> list[tuple[int, ...]]:
    """Ranks: each by itself, then those of equal speed, then those of a node; not all."""
    speeds = rank_speeds(domain)
    nodes = domain.cluster.node_of_server()[: domain.world_size].tolist()
    found: dict[tuple[int, ...], None] = {(rank,): None for rank in range(domain.world_size)}
    for keys in (speeds, nodes):
        for key in dict.fromkeys(keys):
            ranks = tuple(rank for rank, own in enumerate(keys) if own == key)
            if len(ranks) < domain.world_size:
                found[ranks] = None
    return list(found)
