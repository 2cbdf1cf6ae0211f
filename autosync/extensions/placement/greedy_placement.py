"""A plain proposer: modules with many bytes for little work, one after the other, wherever the
simulator likes them most."""

from collections.abc import Collection, Iterator

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.placement.device_sets import module_places
from autosync.extensions.placement.document import PlacedModules
from autosync.extensions.placement.placeable_modules import PlaceableModule, modules_to_place
from autosync.extensions.placement.placed_strategy import with_placement
from autosync.extensions.placement.placement_judge import JudgedPlacement, PlacementJudge
from autosync.strategy import Strategy
from autosync.verification import verify

LEAST_BYTES_SHARE = 0.01
"""Of the model's bytes, that a module must hold to be worth a deal."""


def place_greedily(
    judge: PlacementJudge,
    base: Strategy,
    budget: int = 400,
    most_modules: int = 24,
    left_alone: Collection[str] = (),
) -> JudgedPlacement:
    """The best found from `base` (without a placement) in at most `budget` evaluations, and before
    the judge's `stop`; `base` itself where nothing is better.

    The heaviest by bytes of variables per FLOP come first, of those that hold a hundredth of the
    model's bytes. Each is tried on single devices, on subsets and in proportion to speed, beside
    those placed before it; the best place is kept where it gains. A second pass looks again at
    each, beside all others. left_alone: names of modules and variables; modules of these names, or
    that hold them, stay where they are.
    """
    domain = judge.domain
    candidates = _candidates(domain, most_modules, left_alone)
    stop = judge.evaluations + budget
    best = judge.judge([base])[0]
    for again in range(2):
        for module in candidates:
            left = stop - judge.evaluations
            if left <= 0 or judge.stop():
                return best
            own = list(_neighbours(domain, base, best.strategy.placement, module.name))[:left]
            if not own:  # every place of it is refused
                continue
            found = min(judge.judge(own), key=lambda each: each.rank)
            if found.improves(best):
                best = found
        if not best.strategy.placement and not again:
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
