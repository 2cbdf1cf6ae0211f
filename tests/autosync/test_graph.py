from dataclasses import replace
from typing import Any

import pytest

from autosync.documents import from_json, to_json
from autosync.errors import InvalidInput
from autosync.graph import MAX_OPERATIONS, ModelGraph, Variable
from autosync.models import bundled
from tests.domains import chain_graph


def test_json_is_canonical_and_loses_nothing() -> None:
    graph = bundled("ncf_sparse")
    again = from_json(ModelGraph, to_json(graph))
    assert again == graph
    assert again.id == graph.id
    assert to_json(again) == to_json(graph)


def test_identity_follows_content() -> None:
    graph = chain_graph()
    assert graph.id == chain_graph().id
    assert graph.id != replace(graph, batch_size=9).id
    assert graph.id != chain_graph(((64, 32), (65,), (128, 64), (128,), (10, 128), (10,))).id


def test_sizes_add_up() -> None:
    graph = chain_graph(((4, 3), (5,)))
    assert graph.parameters == 17
    assert graph.size_bytes == 68
    assert Variable("half", (4, 3), "float16").size_bytes == 24


def test_consumers_name_an_operation_once() -> None:
    graph = chain_graph(((4, 3), (5,)))
    twice = replace(graph.operations[1], variables=(0, 0, 1))
    graph = replace(graph, operations=(graph.operations[0], twice))
    assert graph.consumers() == ((0, 1), (1,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"variables": ()}, "no trainable variable"),
        ({"gradient_order": (0, 0)}, "gradient_order"),
        ({"gradient_order": (0,)}, "gradient_order"),
        ({"backward_order": (1,)}, "backward_order"),
        ({"gradient_after": (0,)}, "gradient_after"),
        ({"gradient_after": (0, 7)}, "gradient_after of v1"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        replace(chain_graph(((4, 3), (5,))), **change)


def test_operations_and_variables_that_cannot_be_are_refused() -> None:
    graph = chain_graph(((4, 3), (5,)))
    nowhere = replace(graph.operations[1], inputs=(9,))
    with pytest.raises(InvalidInput, match="op1 reads from nowhere"):
        replace(graph, operations=(graph.operations[0], nowhere))
    unknown = replace(graph.operations[1], variables=(-1,))
    with pytest.raises(InvalidInput, match="op1 consumes no variable"):
        replace(graph, operations=(graph.operations[0], unknown))
    with pytest.raises(InvalidInput, match="names a variable twice"):
        replace(graph, variables=(graph.variables[0], graph.variables[0]))
    with pytest.raises(InvalidInput, match="must be positive"):
        Variable("empty", (4, 0))
    with pytest.raises(InvalidInput, match="touched_rows is 0"):
        Variable("table", (4, 2), sparse=True)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"name": "x", "surprise": 1}', "\x00"])
def test_garbage_is_refused_with_the_field(text: str) -> None:
    with pytest.raises(InvalidInput, match="upload"):
        from_json(ModelGraph, text, source="upload")


def test_numbers_that_no_model_has_are_refused_before_anything_is_computed() -> None:
    """The product of a thousand dimensions of 4,000 digits takes minutes."""
    huge = to_json(chain_graph()).replace('"shape":[64,32]', f'"shape":[{10**4000},32]')
    with pytest.raises(InvalidInput, match=r"shape.*less than or equal"):
        from_json(ModelGraph, huge)
    with pytest.raises(InvalidInput, match="65 dimensions"):
        Variable("deep", (2,) * 65)
    with pytest.raises(InvalidInput, match="which no model has"):  # no 64 bits hold it
        Variable("wide", (2**40, 2**40))
    wide = tuple(Variable(f"v{index}", (2**60,)) for index in range(2))  # 2**62 bytes each
    with pytest.raises(InvalidInput, match="variables hold more bytes than any model"):
        replace(chain_graph(((4, 3), (5,))), variables=wide)


@pytest.mark.parametrize("reads", [1, 2])
def test_edges_that_run_in_a_circle_are_refused(reads: int) -> None:
    """Predictions follow edges forward: one that led back ended in an IndexError."""
    graph = chain_graph()
    backwards = replace(graph.operations[1], inputs=(reads,))
    with pytest.raises(InvalidInput, match="op1 reads from an operation that does not run before"):
        replace(graph, operations=(graph.operations[0], backwards, *graph.operations[2:]))


@pytest.mark.parametrize("size", ["NaN", "Infinity", "1e400", "-1", "1.5", '"many"', "null"])
def test_sizes_that_are_no_numbers_are_refused(size: str) -> None:
    text = to_json(chain_graph()).replace('"shape":[64,32]', f'"shape":[{size},32]')
    with pytest.raises(InvalidInput, match="shape"):
        from_json(ModelGraph, text)


def test_a_misspelt_field_is_named_beside_the_one_that_is_missing() -> None:
    text = to_json(chain_graph())
    for names, told in (
        (("batch_size",), r"\(and 1 more problem: batch_sizes\)"),
        (("batch_size", "name"), r"\(and 3 more problems: batch_size, batch_sizes, names\)"),
    ):
        misspelt = text
        for name in names:
            misspelt = misspelt.replace(f'"{name}":', f'"{name}s":', 1)
        with pytest.raises(InvalidInput, match=f"Field required, .*{told}"):
            from_json(ModelGraph, misspelt)


def test_ten_million_operations_are_refused_at_the_first_that_is_one_too_many() -> None:
    text = to_json(chain_graph())
    begin, end = text.index('{"backward_flops"'), text.index('],"variables"')
    operation = text[begin : text.index("}", begin) + 1]
    many = text[:begin] + ",".join([operation] * (MAX_OPERATIONS + 1)) + text[end:]
    with pytest.raises(InvalidInput, match=f"operations.*at most {MAX_OPERATIONS} items"):
        from_json(ModelGraph, many)
    wrong = text[:begin] + ",".join(["{}"] * 1_000_000) + text[end:]
    with pytest.raises(InvalidInput, match=r"operations\.0.*\(and 5 more problems: "):
        from_json(ModelGraph, wrong)


def test_a_name_given_twice_is_found_among_many() -> None:
    graph = chain_graph()
    names = [f"v{i}" for i in range(60_000)]
    variables = tuple(Variable(name, (4,)) for name in [*names, names[-1]])
    with pytest.raises(InvalidInput, match="names a variable twice, got 'v59999'"):
        replace(graph, variables=variables)


def test_a_graph_whose_parts_always_run_keeps_its_text() -> None:
    graph = chain_graph()
    assert "frequency" not in to_json(graph)
    seldom = replace(graph.operations[0], frequency=0.25)
    rare = replace(graph, operations=(seldom, *graph.operations[1:]))
    assert from_json(ModelGraph, to_json(rare)) == rare
    assert rare.id != graph.id


@pytest.mark.parametrize("frequency", [0.0, -0.5, 1.5, float("nan")])
def test_a_frequency_is_a_share(frequency: float) -> None:
    graph = chain_graph()
    with pytest.raises(InvalidInput, match="frequency"):
        replace(graph.operations[0], frequency=frequency)
    with pytest.raises(InvalidInput, match="frequency"):
        replace(graph.variables[0], frequency=frequency)
