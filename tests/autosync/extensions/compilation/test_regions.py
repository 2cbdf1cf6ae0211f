"""Regions that are compiled together: which are proposed and allowed, and what they take."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.documents import from_json, to_data, to_json
from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.compilation.document import CompiledRegions
from autosync.extensions.compilation.proposals import PROPOSER, regions_to_try, repeated_blocks
from autosync.extensions.compilation.verification import check_strategy
from autosync.extensions.offload.document import Offload
from autosync.population import encode
from autosync.search.extension_proposals import ProposalRequest
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import MemoryStore
from autosync.search.space import Space
from autosync.simulator.extension_prediction import restated_domain
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllReduce, Factors, Schedule, Strategy
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import strategy_of

BLOCKS = 4


def blocks_domain() -> Domain:
    """An embedding, four blocks of one matrix each, and a head."""
    graph = chain_graph(((500, 500),) * (BLOCKS + 2))
    names = ["embed.weight", *(f"net.layers.{i}.weight" for i in range(BLOCKS)), "head.weight"]
    variables = tuple(
        replace(variable, name=name) for variable, name in zip(graph.variables, names, strict=True)
    )
    return domain_of(replace(graph, variables=variables), grid_cluster(2, 1))


DOMAIN = blocks_domain()
PAIRS = CompiledRegions((("net.layers.0", "net.layers.1"), ("net.layers.2", "net.layers.3")))


def by_itself(*entries: CompiledRegions) -> Strategy:
    """An all-reduce of each variable."""
    return strategy_of(DOMAIN, AllReduce).carrying(*entries)


def ready_seconds(*entries: CompiledRegions) -> list[float]:
    """Of the variables, in the order of the model, since the backward pass began."""
    restated = restated_domain(DOMAIN, encode([by_itself(*entries)], DOMAIN), 0)
    ready = restated.timing.ready_seconds[restated.variables.ready]
    return [1e3 * float(seconds) for seconds in ready]


def test_gradients_of_a_region_are_ready_at_its_end() -> None:
    assert ready_seconds() == pytest.approx([12, 10, 8, 6, 4, 2])
    assert ready_seconds(PAIRS) == pytest.approx([12, 12, 12, 6, 6, 6])
    one = CompiledRegions((tuple(f"net.layers.{i}" for i in range(BLOCKS)),))
    assert ready_seconds(one) == pytest.approx([12] * 6)


def test_the_forward_pass_waits_for_all_values() -> None:
    restated = restated_domain(DOMAIN, encode([by_itself(PAIRS)], DOMAIN), 0)
    assert not np.any(restated.timing.forward_start)
    assert restated.timing.forward_seconds == pytest.approx(DOMAIN.timing.forward_seconds)
    assert restated.timing.backward_seconds == pytest.approx(DOMAIN.timing.backward_seconds)


def test_larger_regions_hide_fewer_messages() -> None:
    strategies = [by_itself(regions) for regions in regions_to_try(DOMAIN.graph)]
    seconds = TimelineSimulator().predict(DOMAIN, encode(strategies, DOMAIN)).tolist()
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


def test_regions_are_of_one_block_of_two_and_of_all() -> None:
    assert repeated_blocks(DOMAIN.graph) == [f"net.layers.{i}" for i in range(BLOCKS)]
    sizes = [[len(each) for each in entry.regions] for entry in regions_to_try(DOMAIN.graph)]
    assert sizes == [[1, 1, 1, 1], [2, 2], [4]]
    assert regions_to_try(chain_graph()) == []


def test_regions_are_proposed_where_allowed_once_something_was_measured() -> None:
    bases = [by_itself(), by_itself(PAIRS)]
    allowed = Space(compiled_regions=True)
    request = ProposalRequest(
        DOMAIN, allowed, TimelineSimulator(), bases, Settings(), bases, MemoryStore()
    )
    assert PROPOSER.candidates(replace(request, store=None)) == []
    found = PROPOSER.candidates(request)
    tried = {candidate.strategy.extension(CompiledRegions) for candidate in found}
    assert tried == {*regions_to_try(DOMAIN.graph)} - {PAIRS}
    assert PROPOSER.candidates(replace(request, space=Space())) == []


def test_regions_are_lists_of_names_in_json() -> None:
    strategy = by_itself(PAIRS)
    data = to_data(strategy)["compile_regions"]
    assert data == [["net.layers.0", "net.layers.1"], ["net.layers.2", "net.layers.3"]]
    assert from_json(Strategy, to_json(strategy)) == strategy
    assert "compile_regions" not in to_data(by_itself())


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (by_itself(CompiledRegions((("other",),))), "no trained module 'other'"),
        (by_itself(CompiledRegions((("head",), ("embed",)))), "in another order"),
        (by_itself(PAIRS).carrying(Offload(10**9)), "it has 'swap', too"),
        (replace(by_itself(PAIRS), schedule=Schedule("ddp")), "torch's DDP runs it"),
    ],
)
def test_what_cannot_be_compiled_so_is_refused(strategy: Strategy, why: str) -> None:
    with pytest.raises(InvalidStrategy, match=why):
        verify(strategy, DOMAIN)


def test_factors_are_not_collected_within_a_region() -> None:
    with pytest.raises(InvalidStrategy, match="travels as two factors"):
        check_strategy(strategy_of(DOMAIN, Factors).carrying(PAIRS))


@pytest.mark.parametrize("regions", [(), ((),), (("a", "b"), ("a",)), (("",),)])
def test_regions_name_each_module_once(regions: tuple[tuple[str, ...], ...]) -> None:
    with pytest.raises(InvalidStrategy, match="compile_regions"):
        CompiledRegions(regions)
