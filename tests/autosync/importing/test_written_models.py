"""Models as people write them: keywords, own losses, checkpoints, wrappers, steps with values."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autosync.errors import NotTraceable
from autosync.graph import ModelGraph
from autosync.importing import import_module
from tests.autosync.importing import modules
from tests.autosync.importing.modules import BATCH, Layer, cross_entropy, features, labels


def imported(module: Any, inputs: Any, loss: Any = None, values: bool = False) -> ModelGraph:
    return import_module(module, inputs, loss, name="mine", batch_size=BATCH, values=values)


@pytest.fixture(scope="module")
def plain() -> ModelGraph:
    return imported(modules.perceptron(), (features(), labels()), cross_entropy)


class Answering(nn.Module):
    """Returns what `answer` makes of the loss; takes keywords and a flag."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.answer = answer

    def forward(
        self, x: torch.Tensor, *, y: torch.Tensor | None = None, scaled: bool = False
    ) -> Any:
        outputs = self.layer(x) * (2.0 if scaled else 1.0)
        if y is None:
            return {"logits": outputs}
        return self.answer(nn.functional.cross_entropy(outputs, y), outputs)


class Outputs:
    def __init__(self, loss: torch.Tensor, logits: torch.Tensor) -> None:
        self.loss, self.logits = loss, logits


@pytest.mark.parametrize(
    "answer",
    [
        lambda loss, outputs: loss,
        lambda loss, outputs: {"loss": loss, "logits": outputs},
        lambda loss, outputs: (loss, outputs),
        Outputs,
    ],
    ids=["loss", "mapping", "tuple", "attribute"],
)
def test_a_model_returns_its_own_loss(answer: Any) -> None:
    graph = imported(Answering(answer), {"x": features(), "y": labels(), "scaled": True})
    types = [operation.type for operation in graph.operations]
    assert types == ["addmm", "mul", "_log_softmax", "nll_loss_forward"]


def test_a_loss_function_of_keywords_gets_those_that_it_names() -> None:
    inputs = {"x": features(), "target": labels(), "unread": features()}

    def loss(outputs: Any, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs["logits"], target)

    assert imported(Answering(None), inputs, loss).operations[-1].name == "loss.nll_loss_forward"


@pytest.mark.parametrize(
    "loss", [nn.functional.cross_entropy, nn.CrossEntropyLoss()], ids=["function", "module"]
)
def test_a_loss_may_call_the_outputs_what_the_model_calls_its_input(
    plain: ModelGraph, loss: Any
) -> None:
    inputs = {"input": features(), "target": labels()}
    assert imported(modules.perceptron(), inputs, loss).operations == plain.operations


def test_a_model_of_any_keywords_gets_an_input_of_the_name_of_the_outputs() -> None:
    class Rest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, **inputs: torch.Tensor) -> Any:
            return self.layer(inputs["x"])

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x, y)

    graph = imported(Rest(), {"x": features(), "y": labels()}, loss)
    assert graph.operations[0].name == "layer.addmm"


def test_several_losses_are_summed_by_the_user_only() -> None:
    module = Answering(lambda loss, outputs: {"boxes": loss, "classes": loss * 2})
    inputs = {"x": features(), "y": labels()}
    with pytest.raises(NotTraceable) as caught:
        imported(module, inputs)
    assert "a dict of 'boxes', 'classes'" in caught.value.message
    assert "how they add up" in caught.value.remedy
    assert imported(module, inputs, lambda losses: sum(losses.values())).operations


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.after = nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.inner, self.before(x), use_reentrant=self.reentrant)
        scores: torch.Tensor = self.after(hidden)
        return scores


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_models(reentrant: bool) -> None:
    graph = imported(Checkpointed(reentrant), (features(), labels()), cross_entropy)
    names = [graph.variables[v].name for v in graph.gradient_order]
    assert set(names[:2]) == {"after.weight", "after.bias"}
    assert set(names[-2:]) == {"before.weight", "before.bias"}
    ends = {graph.variables[v].name: graph.gradient_after[v] for v in range(len(names))}
    place = {operation: i for i, operation in enumerate(graph.backward_order)}
    assert place[ends["inner.2.weight"]] < place[ends["inner.0.weight"]]
    assert graph.operations[ends["inner.2.weight"]].name == "inner.2.addmm"
    layers = 2 if reentrant else 1  # the other way stops when it has what backward needs
    recomputed = layers * 2 * BATCH * 8 * 8
    together = sum(operation.backward_flops for operation in graph.operations)
    module = Checkpointed(reentrant)
    bare = nn.Sequential(module.before, *module.inner, module.after)
    without = imported(bare, (features(), labels()), cross_entropy)
    assert together == recomputed + sum(o.backward_flops for o in without.operations)


# torch.compile imports it
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiled_model_is_recorded_as_it_is_written(plain: ModelGraph) -> None:
    whole = torch.compile(modules.perceptron())
    in_place = modules.perceptron()
    in_place.compile()
    for module in (whole, in_place):
        assert imported(module, (features(), labels()), cross_entropy) == plain
    assert in_place._compiled_call_impl is not None, "the given module is left alone"


def test_in_data_parallel_the_names_are_the_inner_models(plain: ModelGraph) -> None:
    module = nn.DataParallel(modules.perceptron())
    assert imported(module, (features(), labels()), cross_entropy) == plain


def test_checks_of_values_that_libraries_skip_while_tracing() -> None:
    """As transformers' do, which look for fake tensors."""

    def checked(x: torch.Tensor) -> torch.Tensor:
        if type(x).__name__ != "FakeTensor" and bool(torch.isnan(x).any()):
            raise ValueError("not a number")
        return x

    graph = imported(Layer(checked), (features(), labels()), cross_entropy)
    assert [o.type for o in graph.operations] == ["addmm", "_log_softmax", "nll_loss_forward"]
    assert graph.operations[0].has_batch_dimension


def test_constants_may_be_read() -> None:
    sizes = Layer(lambda x: x * float(torch.tensor(2.0)))
    assert imported(sizes, (features(), labels()), cross_entropy).parameters == 27


class Routed(nn.Module):
    """Every row goes to the expert that a router picks: mixtures loop over those that were."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x).softmax(1)
        out = x.new_zeros(x.shape[0], 3)
        for index, expert in enumerate(self.experts):
            rows = (scores.argmax(1) == index).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]) * scores[rows, index, None])
        return out


def test_a_step_that_depends_on_values_runs_where_the_user_says_so() -> None:
    torch.manual_seed(0)
    module, inputs = Routed(), (features(), labels())
    with pytest.raises(NotTraceable, match="shape depends on data") as caught:
        imported(module, inputs, cross_entropy)
    assert "--values" in caught.value.remedy
    before = {name: value.clone() for name, value in module.state_dict().items()}
    drawn = torch.get_rng_state()
    graph = imported(module, inputs, cross_entropy, values=True)
    assert [v.name for v in graph.variables][:2] == ["router.weight", "router.bias"]
    kinds = [o.type for o in graph.operations]
    assert kinds.count("nonzero") == kinds.count("index_add") == 2
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_values_do_not_change_what_needs_none(plain: ModelGraph) -> None:
    inputs = (features(), labels())
    assert imported(modules.perceptron(), inputs, cross_entropy, values=True) == plain


def test_weights_without_values_cannot_give_any() -> None:
    with torch.device("meta"):
        module = Routed()
    with pytest.raises(NotTraceable, match="have none: they are on the meta device"):
        imported(module, (features(), labels()), cross_entropy, values=True)


def test_parameters_that_the_loss_does_not_reach_come_last_with_a_warning() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Linear(8, 3)
            self.used = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.used(x)
            return scores

    with pytest.warns(UserWarning, match=r"'idle.weight', 'idle.bias', so that they get no grad"):
        graph = imported(Unused(), (features(), labels()), cross_entropy)
    assert [graph.variables[v].name for v in graph.gradient_order[-2:]] == [
        "idle.weight",
        "idle.bias",
    ]
    assert {graph.gradient_after[v] for v in (0, 1)} == {graph.backward_order[-1]}


def test_a_table_of_bounded_rows_keeps_its_sparse_gradient() -> None:
    class Bounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 8, max_norm=1.0, sparse=True)
            self.output = nn.Linear(8, 3)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.output(self.table(words).sum(1))
            return scores

    words = torch.randint(0, 20, (BATCH, 2))
    table = imported(Bounded(), (words, labels()), cross_entropy, values=True).variables[0]
    assert table.name == "table.weight"
    assert (table.sparse, table.touched_rows) == (True, BATCH * 2)
