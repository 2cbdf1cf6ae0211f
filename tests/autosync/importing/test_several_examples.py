"""Modules whose control flow depends on their inputs: several examples, one graph."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from autosync.errors import InvalidInput, NotTraceable
from autosync.graph import ModelGraph, seen_by_count
from autosync.importing import Examples, import_module, load_target
from autosync.importing.several_examples import RecordedGraph, united_graph
from autosync.profiling import estimate_profile, measure_profile
from tests.autosync.importing.graph_contract import assert_graph_contract

BATCH = 4


class Branching(nn.Module):
    """Positive sums take the left branch, others the right one, and `depth` repeats the last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.left = nn.Linear(8, 8)
        self.right = nn.Linear(8, 16)
        self.narrow = nn.Linear(16, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, depth: int = 1) -> torch.Tensor:
        x = self.stem(x)
        x = self.left(x) if bool(x.detach().sum() > 0) else self.narrow(self.right(x))
        for _ in range(depth):
            x = torch.relu(self.head(x)).repeat(1, 4)
        return x.sum()


def branching() -> Branching:
    """Its stem is the identity, so that the inputs choose the branch."""
    module = Branching()
    with torch.no_grad():
        module.stem.weight.copy_(torch.eye(8))
        module.stem.bias.zero_()
    return module


UP, DOWN = torch.ones(BATCH, 8), -torch.ones(BATCH, 8)


def recorded(*inputs: object, values: bool = True) -> ModelGraph:
    module, examples = branching(), Examples(inputs)
    return import_module(module, examples, None, name="branching", batch_size=BATCH, values=values)


def imported(*inputs: object) -> ModelGraph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return recorded(*inputs)


def test_the_graph_has_what_either_example_ran_and_says_in_how_many() -> None:
    graph = imported((UP,), (DOWN,))
    assert_graph_contract(graph, BATCH)
    assert graph.examples == 2
    seen = {operation.name: operation.frequency for operation in graph.operations}
    assert seen["stem.addmm"] == seen["head.addmm"] == 1
    assert seen["left.addmm"] == seen["right.addmm"] == seen["narrow.addmm"] == 0.5
    assert seen_by_count(graph)[1] == 3


def test_every_variable_gets_its_gradient_where_an_example_showed_it() -> None:
    graph = imported((UP,), (DOWN,))
    names = [variable.name for variable in graph.variables]
    ready = [names[v].partition(".")[0] for v in graph.gradient_order]
    place = {part: ready.index(part) for part in ready}
    assert place["head"] < place["left"] < place["stem"]
    assert place["head"] < place["narrow"] < place["right"] < place["stem"]
    consumer = graph.operations[graph.gradient_after[names.index("right.weight")]]
    assert consumer.name == "right.addmm"


def test_sizes_are_the_largest_and_estimates_the_mean() -> None:
    up, down = (imported((each,)) for each in (UP, DOWN))
    both, thrice = imported((UP,), (DOWN,)), imported((UP, 3), (UP,))
    assert up.examples == 1
    assert {o.frequency for o in up.operations} == {1}
    assert len(both.operations) == len({o.name for g in (up, down) for o in g.operations})
    repeated = {o.name: o.frequency for o in thrice.operations if o.name.startswith("head.addmm")}
    assert repeated == {"head.addmm": 1, "head.addmm:2": 0.5, "head.addmm:3": 0.5}
    seconds = [estimate_profile(g, "v100").compute_seconds for g in (up, down, both)]
    assert seconds[2] == pytest.approx((seconds[0] + seconds[1]) / 2)
    assert "mean of 2 example inputs" in estimate_profile(both, "v100").note


def test_without_a_gradient_in_any_example_a_variable_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"'right\.weight'.*'narrow\.weight'"):
        recorded((UP,), (UP,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded((UP,), (DOWN,))


def test_the_example_that_cannot_be_recorded_is_named() -> None:
    with pytest.raises(NotTraceable, match=r"'branching, example 1 of 2'.*reads a tensor's value"):
        recorded((UP,), (DOWN,), values=False)
    with pytest.raises(NotTraceable, match=r"example 2 of 2'.*batch size 4"):
        imported((UP,), (UP[:3],))
    with pytest.raises(InvalidInput, match="no example input"):
        Examples(())


def test_operations_in_another_order_stand_twice_and_all_run_forward() -> None:
    """Two examples that run the same modules the other way round."""
    graph = imported((UP,), (DOWN,))
    first = RecordedGraph(graph, frozenset())
    count = len(graph.operations)
    swapped = ModelGraph(
        graph.name,
        BATCH,
        tuple(
            type(o)(o.name, o.type, 1, 1, 1, True, (i - 1,) if i else (), o.variables)
            for i, o in enumerate(reversed(graph.operations))
        ),
        graph.variables,
        tuple(range(count)),
        graph.gradient_order,
        tuple(count - 1 - after for after in graph.gradient_after),
    )
    united = united_graph([first, RecordedGraph(swapped, frozenset())], "both")
    names = [operation.name for operation in united.operations]
    assert len(set(names)) == len(names) > count
    assert sorted(united.gradient_order) == list(range(len(graph.variables)))


def test_measured_seconds_are_the_mean_of_the_examples() -> None:
    module, examples = branching(), Examples([(UP,), (DOWN,)])
    graph = imported((UP,), (DOWN,))
    profile = measure_profile(module, examples, None, graph, iterations=2)
    assert "each of 2 example inputs" in profile.note
    assert all(
        seconds > 0
        for operation, seconds in zip(graph.operations, profile.forward_seconds, strict=True)
        if operation.variables
    )


PROJECT = """
import torch
from torch import nn
from autosync.importing import Examples

def example():
    return nn.Linear(4, 2), Examples([(torch.ones(3, 4),), (torch.zeros(3, 4),)]), sum_of

def uneven():
    return nn.Linear(4, 2), Examples([(torch.ones(3, 4),), (torch.zeros(2, 4),)]), sum_of

def weights():
    return nn.Linear(4, 2).load_state_dict(torch.load("absent/weights.pt")), None, None

def sum_of(outputs, *inputs):
    return outputs.sum()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "several_project.py").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "several_project", raising=False)


@pytest.mark.usefixtures("project")
def test_a_function_may_return_several() -> None:
    found = load_target("several_project:example")
    assert isinstance(found.example_inputs, Examples)
    assert found.batch_size == 3
    with pytest.raises(InvalidInput, match="one batch size"):
        load_target("several_project:uneven")


@pytest.mark.usefixtures("project")
def test_a_module_that_needs_a_file_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match=r"needs the file 'absent/weights\.pt'") as caught:
        load_target("several_project:weights")
    assert "several_project.py" in caught.value.message
