"""torch's engines as documents: units by name, and what populations keep of them."""

from dataclasses import replace

import pytest

from autosync.documents import from_json, to_data, to_json
from autosync.errors import InvalidStrategy
from autosync.population import concatenate, decode, encode
from autosync.simulator.sharded_strategy import fully_sharded
from autosync.strategy import Strategy
from autosync.torch_engine import FullyShard, usual_units
from tests.domains import domain_of, layered_graph

DOMAIN = domain_of(layered_graph())


@pytest.mark.parametrize(
    ("variables", "units"),
    [
        (
            ["wte.weight", "h.0.attn.weight", "h.0.mlp.0.bias", "h.1.attn.weight", "norm.weight"],
            ("h.0", "h.1"),
        ),
        (["conv1.weight", "layer1.0.conv1.weight", "layer1.1.bn.weight"], ("layer1.0", "layer1.1")),
        (
            ["features.conv0.weight", "features.denseblock1.denselayer2.conv1.weight"],
            ("features.conv0", "features.denseblock1"),
        ),
        (
            ["model.encoder.weight", "model.head.weight", "model.head.bias"],
            ("model.encoder", "model.head"),
        ),
        (["weight", "bias"], ()),
    ],
)
def test_units_are_the_blocks_that_one_would_wrap(
    variables: list[str], units: tuple[str, ...]
) -> None:
    assert usual_units(variables) == units


def test_a_variable_is_of_the_innermost_unit_and_else_of_the_root() -> None:
    engine = FullyShard(("layers.1", "layers.1.mlp", "layers.10"), 4)
    names = ("layers.1.mlp.weight", "layers.1.norm.weight", "layers.10.weight", "head.weight")
    assert [engine.unit_of(name) for name in names] == [1, 0, 2, 3]
    assert engine.keeps_values(3)
    assert not engine.keeps_values(0)
    assert replace(engine, reshard_after_forward=False).keeps_values(0)


def test_impossible_engines_are_refused() -> None:
    with pytest.raises(InvalidStrategy, match="shard_ranks is 1"):
        FullyShard(("a",), 1)
    with pytest.raises(InvalidStrategy, match="twice"):
        FullyShard(("a", "a"), 2)
    with pytest.raises(InvalidStrategy, match="twice"):
        FullyShard(("a", ("b", "a")), 2)
    with pytest.raises(InvalidStrategy, match=r"lists 'a\.b' beside 'a', which holds it"):
        FullyShard((("a", "a.b"),), 2)
    with pytest.raises(InvalidStrategy, match="has a list of 1 modules"):
        FullyShard((("a",),), 2)
    with pytest.raises(InvalidStrategy, match="has 1 values for 2 units"):
        FullyShard(("a", "b"), 2, (True,))
    for ranks in (1, 3, 4):
        with pytest.raises(InvalidStrategy, match=f"reshard_after_forward is {ranks} ranks of 4"):
            FullyShard(("a", "b"), 4, (True, ranks))
    with pytest.raises(InvalidStrategy, match=r"backward_prefetch is 9\. Give 1"):
        FullyShard(("a",), 2, backward_prefetch=9)


def test_choices_are_in_the_document_where_they_are_made() -> None:
    engine = FullyShard((("a", "b"), "c"), 4, (True, False), 2)
    data = to_data(engine)
    assert data["units"] == [["a", "b"], "c"]
    assert data["reshard_after_forward"] == [True, False]
    assert "backward_prefetch" not in data
    assert from_json(FullyShard, to_json(engine)) == engine
    assert engine.unit_of("b.weight") == 0
    assert [engine.keeps_values(unit) for unit in range(3)] == [False, True, True]
    assert FullyShard(("a", "c"), 4, (False, False)) == FullyShard(("a", "c"), 4, False)


def test_a_unit_may_reshard_to_a_smaller_group() -> None:
    engine = FullyShard(("a", "b", "c"), 8, (4, True, False))
    assert from_json(FullyShard, to_json(engine)) == engine
    assert to_data(engine)["reshard_after_forward"] == [4, True, False]
    assert [engine.gathers_again_over(unit) for unit in range(4)] == [4, 8, 0, 0]
    assert engine.group_sizes == (8, 4)
    everywhere = FullyShard(("a", "b"), 8, (2, 2))
    assert everywhere == from_json(FullyShard, to_json(everywhere))
    assert everywhere.reshard_after_forward == 2


def test_documents_without_an_engine_keep_their_text() -> None:
    sharded = fully_sharded(DOMAIN, 4)
    assert '"engine":{' in to_json(sharded)
    assert from_json(Strategy, to_json(sharded)) == sharded
    plain = replace(sharded, engine=None)
    assert "engine" not in to_json(plain)
    assert plain.id != sharded.id


def test_populations_keep_engines_wherever_they_go() -> None:
    sharded = [fully_sharded(DOMAIN, 4), fully_sharded(DOMAIN, 2, reshard_after_forward=False)]
    plain = replace(sharded[0], engine=None)
    first, second = encode([plain, sharded[1]], DOMAIN), encode([sharded[0]], DOMAIN)
    joined = concatenate([first, second]).take([2, 1, 0])
    found = [decode(joined, index, DOMAIN) for index in range(3)]
    assert [each.id for each in found] == [each.id for each in (*sharded, plain)]
