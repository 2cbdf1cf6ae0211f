"""Regions of repeated blocks for the fastest strategies that were measured, where a space allows
it: one, two, four, ... blocks together, up to half of them, and all."""

import re
from collections import defaultdict

from autosync.extensions.compilation.document import CompiledRegions
from autosync.extensions.compilation.verification import verify
from autosync.graph import ModelGraph
from autosync.search.extension_proposals import ProposalRequest, Proposer
from autosync.search.loop.predicted_candidates import carried_candidates
from autosync.search.loop.tuning_store import Candidate, Origin
from autosync.search.space import Space
from autosync.strategy import Strategy

NUMBERED = re.compile(r"^(?P<list>(?:\w+\.)*?)(?P<place>\d+)\.(?P<rest>.+)$")
"""A variable of a block in a list of blocks, the outermost."""
LEAST_BLOCKS = 2
BASES = 1
ORIGIN: Origin = "compiled_regions"


class CompilationProposer(Proposer):
    def lies_in(self, strategy: Strategy, space: Space) -> bool:
        return space.compiled_regions or strategy.extension(CompiledRegions) is None

    def candidates(self, request: ProposalRequest) -> list[Candidate]:
        """None before the first round: an eager strategy is measured first."""
        if not request.space.compiled_regions or request.store is None:
            return []
        fastest = [each for each in request.bases if not (each.extensions or each.run_by_torch)]
        regions = regions_to_try(request.domain.graph)

        def check(strategy: Strategy) -> None:
            verify(strategy, request.domain, allow_inexact=False)

        return carried_candidates(request, fastest[:BASES], regions, check, ORIGIN)


def regions_to_try(graph: ModelGraph) -> list[CompiledRegions]:
    """Of the model's repeated blocks; empty where it has none."""
    blocks = repeated_blocks(graph)
    if len(blocks) < LEAST_BLOCKS:
        return []
    sizes = [len(blocks)]
    size = 1
    while 2 * size <= len(blocks):
        sizes.append(size)
        size *= 2
    return [
        CompiledRegions(tuple(tuple(blocks[at : at + size]) for at in range(0, len(blocks), size)))
        for size in sorted(sizes)
    ]


def repeated_blocks(graph: ModelGraph) -> list[str]:
    """Names of the modules of the list that holds the most bytes in blocks with alike variables, in
    the order of the list; empty without such a list."""
    of_list: dict[str, dict[int, set[tuple[str, tuple[int, ...]]]]] = defaultdict(
        lambda: defaultdict(set)
    )
    size_bytes: dict[str, int] = defaultdict(int)
    for variable in graph.variables:
        if match := NUMBERED.match(variable.name):
            own = of_list[match["list"]][int(match["place"])]
            own.add((match["rest"], variable.shape))
            size_bytes[match["list"]] += variable.size_bytes
    alike = [
        name for name, blocks in of_list.items() if len(set(map(frozenset, blocks.values()))) == 1
    ]
    if not alike:
        return []
    largest = max(alike, key=lambda name: size_bytes[name])
    return [f"{largest}{place}" for place in sorted(of_list[largest])]


PROPOSER = CompilationProposer()
