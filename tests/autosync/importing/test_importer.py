import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autosync.graph import ModelGraph
from autosync.importing import import_module
from autosync.importing.recording_devices import MetaDevice, copied_module
from autosync.importing.training_step import Inputs, compute_loss, resize_batch
from autosync.models import BUNDLED
from autosync.profiling import measure_profile
from benchmarks.models import build, import_bundled
from tests.autosync.importing import modules
from tests.autosync.importing.graph_contract import assert_graph_contract
from tests.autosync.importing.modules import BATCH, cross_entropy, features, labels
from tests.long_parameters import long_after

WORDS = torch.randint(0, 20, (BATCH, 5))


def recorded(module: nn.Module, name: str = "tried") -> ModelGraph:
    return import_module(module, (features(), labels()), cross_entropy, name=name, batch_size=BATCH)


@pytest.fixture(scope="module")
def tied() -> ModelGraph:
    return import_module(modules.Tied(), (WORDS,), modules.tied_loss, name="tied", batch_size=BATCH)


@pytest.fixture(scope="module")
def bert() -> ModelGraph:
    return import_bundled("bert_3l", 2)


MADE: dict[str, Callable[[], nn.Module]] = {
    "perceptron": modules.perceptron,
    "checkpointed": modules.Checkpointed,
    "own function": modules.OwnFunction,
    "slices": modules.Slices,
    "attending": modules.Attending,
}


def assert_flops_are_torchs(
    graph: ModelGraph, module: nn.Module, inputs: Inputs, loss: object
) -> None:
    with torch.device("meta"):
        with FlopCounterMode(display=False) as counter:
            compute_loss(module, inputs, loss)  # type: ignore[arg-type]
        forward = counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            compute_loss(module, inputs, loss).backward()  # type: ignore[arg-type]
        total = counter.get_total_flops()
    assert sum(operation.forward_flops for operation in graph.operations) == forward > 0
    both = sum(o.forward_flops + o.backward_flops for o in graph.operations)
    assert both == total > forward


@pytest.mark.parametrize("name", long_after(2, ["vgg16", "bert_3l", "resnet50", "transformer"]))
def test_flops_equal_torchs_own_counter(name: str) -> None:
    with torch.device("meta"):
        module, inputs, loss = build(name, 2)
    graph = import_module(module, inputs, loss, name=name, batch_size=2)
    assert_flops_are_torchs(graph, module, inputs, loss)


@pytest.mark.parametrize("kind", MADE)
def test_flops_equal_torchs_own_counter_for_unusual_modules(kind: str) -> None:
    module = MADE[kind]()
    inputs = (features(), labels())
    graph = recorded(module)
    meta = MetaDevice()
    copied = copied_module(module, meta, kind)
    assert_flops_are_torchs(graph, copied, resize_batch(inputs, BATCH, 1, meta), cross_entropy)


@pytest.mark.parametrize("kind", MADE)
def test_gradients_get_ready_where_they_are_said_to(kind: str) -> None:
    graph = recorded(MADE[kind]())
    place = {operation: i for i, operation in enumerate(graph.backward_order)}
    ends = [place[graph.gradient_after[v]] for v in graph.gradient_order]
    assert ends == sorted(ends)
    for variable, consumers in enumerate(graph.consumers()):
        assert graph.gradient_after[variable] == max(consumers, key=place.__getitem__)


def test_a_real_backward_on_the_cpu_has_the_recorded_order() -> None:
    module = modules.Tied()
    order: list[str] = []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    modules.tied_loss(module(WORDS), WORDS).backward()
    graph = import_module(module, (WORDS,), modules.tied_loss, name="t", batch_size=BATCH)
    assert [graph.variables[v].name for v in graph.gradient_order] == order


def test_a_tied_embedding_is_ready_last_and_names_all_its_consumers(tied: ModelGraph) -> None:
    names = [variable.name for variable in tied.variables]
    assert names == ["embedding.weight", "middle.weight", "middle.bias"]
    consumers = [tied.operations[i].name for i in tied.consumers()[0]]
    assert consumers == ["embedding.embedding", "mm"]
    assert tied.gradient_order[-1] == 0
    assert tied.operations[tied.gradient_after[0]].name == "embedding.embedding"
    reversed_forward = [v for op in reversed(tied.operations) for v in op.variables]
    assert reversed_forward[0] == 0, "reversed forward order would have it first"


def test_names_are_module_path_and_operation() -> None:
    graph = recorded(modules.perceptron())
    names = ["0.addmm", "1.relu", "2.addmm", "loss._log_softmax", "loss.nll_loss_forward"]
    assert [operation.name for operation in graph.operations] == names
    assert [operation.inputs for operation in graph.operations] == [(), (0,), (1,), (2,), (3,)]
    assert [operation.variables for operation in graph.operations[:3]] == [(0, 1), (), (2, 3)]
    assert [operation.output_bytes for operation in graph.operations[:3]] == [128, 128, 48]


def test_names_are_right_behind_a_module_that_raised_and_was_caught() -> None:
    names = [operation.name for operation in recorded(modules.AroundFalling()).operations]
    assert names[:2] == ["body.plain.addmm", "relu"]


def test_edges_pass_through_views(tied: ModelGraph) -> None:
    """Linear on three dimensions views its input and its output."""
    middle = next(o for o in tied.operations if o.name == "middle.addmm")
    assert tied.operations[middle.inputs[0]].name == "embedding.embedding"
    assert not {o.type for o in tied.operations} & {"view", "t", "transpose", "expand", "detach"}


def test_writes_in_place_chain() -> None:
    graph = recorded(modules.Slices())
    by_name = {operation.name: operation for operation in graph.operations}
    sources = {graph.operations[i].name for i in by_name["copy_:2"].inputs}
    assert sources == {"copy_", "right.addmm"}
    assert [graph.operations[i].name for i in by_name["loss._log_softmax"].inputs] == ["copy_:2"]


def test_factor_rows_are_the_rows_of_the_activation(tied: ModelGraph) -> None:
    assert [v.factor_rows for v in recorded(modules.perceptron()).variables] == [BATCH, 0, BATCH, 0]
    middle = next(v for v in tied.variables if v.name == "middle.weight")
    assert middle.factor_rows == WORDS.numel()
    assert tied.variables[0].factor_rows == 0, "its gradient is a sum of two"


def test_sparse_variables_touch_at_most_their_indices() -> None:
    rows = torch.zeros(BATCH, 3, dtype=torch.long)
    graph = import_module(
        modules.Sparse(), (rows, labels()), cross_entropy, name="sparse", batch_size=BATCH
    )
    found = {v.name: (v.sparse, v.touched_rows) for v in graph.variables}
    assert found["bag.weight"] == (True, 3 * BATCH)
    assert found["large.weight"] == (True, 3 * BATCH)
    assert found["small.weight"] == (True, 10), "capped at the table"
    assert found["output.weight"] == (False, 0)


def test_a_tied_sparse_embedding_is_dense() -> None:
    """The output layer's gradient is dense, so the sum is."""
    graph = import_module(
        modules.Tied(sparse=True), (WORDS,), modules.tied_loss, name="t", batch_size=BATCH
    )
    assert not graph.variables[0].sparse


def test_batch_dimension_is_found_by_running_at_another_size(bert: ModelGraph) -> None:
    flags = {operation.name: operation.has_batch_dimension for operation in bert.operations}
    assert flags["encoder.embeddings.word.embedding"]
    assert not flags["encoder.embeddings.position.embedding"]
    assert flags["encoder.layers.0.attention.bmm"], "the batch is folded into the heads"
    assert not flags["loss.add"]


def test_batch_dimension_where_the_module_runs_at_one_size_only() -> None:
    graph = recorded(modules.FixedBatch())
    flags = {operation.name: operation.has_batch_dimension for operation in graph.operations}
    assert flags["layer.addmm"]
    assert not flags["ones"]
    assert not flags["loss.nll_loss_forward"]


def test_frozen_parameters_are_no_variables_and_take_memory() -> None:
    module = modules.perceptron()
    assert recorded(module).frozen_bytes == 0
    module[0].requires_grad_(False)
    graph = recorded(module)
    assert [v.name for v in graph.variables] == ["2.weight", "2.bias"]
    assert graph.frozen_bytes == 4 * (8 * 8 + 8)


def test_counters_that_lead_nowhere_are_no_operations() -> None:
    module = nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3))
    types = [operation.type for operation in recorded(module).operations]
    assert types == ["addmm", "native_batch_norm", "_log_softmax", "nll_loss_forward"]


def test_a_given_module_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    recorded(module)
    for name, value in module.state_dict().items():
        assert value.device.type == "cpu"
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not module[0]._forward_hooks
    assert not module[0]._forward_pre_hooks


def test_a_module_and_its_factory_give_one_graph() -> None:
    made = import_module(
        modules.perceptron, (features(), labels()), cross_entropy, name="tried", batch_size=BATCH
    )
    assert made.id == recorded(modules.perceptron()).id


def test_a_module_that_returns_the_loss_gets_all_inputs() -> None:
    class WithLoss(nn.Linear):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            assert y is not None
            return nn.functional.cross_entropy(super().forward(x), y)

    inputs = (features(), labels())
    graph = import_module(WithLoss(8, 3), inputs, None, name="w", batch_size=BATCH)
    assert graph.operations[-1].type == "nll_loss_forward"


def test_every_operation_runs_backward_in_reverse_of_what_feeds_it(bert: ModelGraph) -> None:
    place = {operation: i for i, operation in enumerate(bert.backward_order)}
    addmms = [i for i, o in enumerate(bert.operations) if o.name.endswith("narrow.addmm")]
    assert len(addmms) == 3
    assert all(place[earlier] > place[later] for earlier, later in pairwise(addmms))


def test_a_model_is_imported_without_memory_for_its_weights() -> None:
    recorded(modules.perceptron())  # loads what torch loads on first use
    with torch.device("meta"):
        module, inputs, loss = BUNDLED["vgg16"].build()
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory_kb("VmRSS")
    graph = import_module(module, inputs, loss, name="vgg16", batch_size=32)
    assert memory_kb("VmHWM") - before < 64 * 1024
    assert graph.size_bytes > 400e6


def memory_kb(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found
    return int(found.group(1))


def test_variables_and_operations_keep_the_dtype_of_the_model() -> None:
    module, inputs = modules.perceptron().bfloat16(), (features().bfloat16(), labels())
    half = import_module(module, inputs, cross_entropy, name="half", batch_size=BATCH)
    assert {variable.dtype for variable in half.variables} == {"bfloat16"}
    assert {operation.dtype for operation in half.operations} == {"bfloat16"}
    assert half.operations[0].output_bytes == 64
    whole = recorded(modules.perceptron())
    assert {operation.dtype for operation in whole.operations} == {"float32"}


def test_a_module_in_eval_mode_is_recorded_so_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="Sequential is in eval mode"):
        recorded(modules.perceptron().eval())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    example = modules.perceptron(), (features(), labels()), cross_entropy
    whole = import_module(*example, name="mixed", batch_size=BATCH)
    mixed = import_module(*example, name="mixed", batch_size=BATCH, autocast=dtype)
    assert mixed.variables == tuple(replace(v, factor_rows=0) for v in whole.variables)
    products = [[o for o in graph.operations if o.type == "addmm"] for graph in (whole, mixed)]
    assert {o.dtype for o in products[1]} == {str(dtype).removeprefix("torch.")}
    for ours, theirs in zip(*products, strict=True):
        assert ours.forward_flops == theirs.forward_flops
        assert ours.backward_flops == theirs.backward_flops
        assert ours.output_bytes == 2 * theirs.output_bytes
    layers = [[g.variables[v].name[0] for v in g.gradient_order] for g in (whole, mixed)]
    assert layers[0] == layers[1]
    assert not torch.is_autocast_enabled("cpu")


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    "plain": (nn.Conv2d(8, 12, 3, padding=1), (8, 6, 6), 12 * 36 * 8 * 9),
    "grouped": (nn.Conv2d(8, 12, 3, padding=1, groups=4), (8, 6, 6), 12 * 36 * 2 * 9),
    "depthwise": (nn.Conv2d(8, 8, 5, padding=2, groups=8), (8, 6, 6), 8 * 36 * 25),
    "stride": (nn.Conv2d(8, 16, 2, stride=2, groups=8), (8, 6, 6), 16 * 9 * 4),
    "dilated": (nn.Conv2d(8, 8, 3, dilation=2, groups=2), (8, 6, 6), 8 * 4 * 4 * 9),
    "one axis": (nn.Conv1d(8, 8, 3, padding=1, groups=8), (8, 10), 8 * 10 * 3),
    "three axes": (nn.Conv3d(4, 4, 3, padding=1, groups=4), (4, 3, 4, 5), 4 * 60 * 27),
    "transposed": (nn.ConvTranspose2d(8, 6, 3, stride=2), (8, 5, 5), 8 * 25 * 6 * 9),
    "both": (nn.ConvTranspose2d(8, 12, 3, stride=2, groups=4), (8, 5, 5), 8 * 25 * 3 * 9),
}
"""Module, an image's shape, and multiplications of one image."""


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_flops_of_convolutions(kind: str) -> None:
    """Forward, gradient of the weight, gradient of the images: as many products each."""
    module, shape, products = CONVOLUTIONS[kind]

    def of(*parts: nn.Module) -> tuple[int, int]:
        images = torch.randn(BATCH, *shape)
        graph = import_module(
            nn.Sequential(*parts), (images,), lambda y, _: y.sum(), name="c", batch_size=BATCH
        )
        (found,) = (o for o in graph.operations if o.type == "convolution")
        return found.forward_flops, found.backward_flops

    forward = 2 * BATCH * products
    assert of(module) == (forward, forward), "images need no gradient"
    trained = nn.LayerNorm(shape)
    assert of(trained, module) == (forward, 2 * forward)


class Recurrent(nn.Module):
    """A cell token by token, as one writes it by hand, and the loop's own operations."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(20, 8)
        self.cell = nn.GRUCell(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x, state = self.word(words), torch.zeros(len(words), 8, device=words.device)
        states = []
        for token in range(words.shape[1]):
            state = self.cell(x[:, token], state) * 0.5
            states.append(state)
        return torch.sum(self.last(torch.stack(states, 1)))


def of_tokens(tokens: int) -> ModelGraph:
    words = (torch.zeros(BATCH, tokens, dtype=torch.long),)
    return import_module(Recurrent(), words, None, name="loop", batch_size=BATCH)


def test_a_loop_over_tokens_is_one_operation() -> None:
    short, longer = map(of_tokens, (24, 72))
    assert "loop" not in {o.type for o in short.operations}
    names = [o.name for o in longer.operations]
    assert len(names) < 12
    loop = names.index("loop")
    assert longer.operations[loop].inputs, "it reads the words"
    assert any(loop in o.inputs for o in longer.operations)
    for count in ("forward_flops", "backward_flops", "output_bytes"):
        small, large = (sum(getattr(o, count) for o in g.operations) for g in (short, longer))
        assert large == pytest.approx(3 * small, rel=0.05), count
    assert {v.name for v in longer.variables} == {v.name for v in short.variables}
    cell = [i for i, v in enumerate(longer.variables) if v.name.startswith("cell")]
    assert {longer.gradient_after[i] for i in cell} == {loop}
    assert_graph_contract(longer, BATCH)
    orders = [[g.variables[v].name for v in g.gradient_order] for g in (short, longer)]
    assert orders[0] == orders[1]
    words = (torch.zeros(BATCH, 72, dtype=torch.long),)
    profile = measure_profile(Recurrent(), words, None, longer, iterations=1)
    assert max(profile.forward_seconds) == profile.forward_seconds[loop]
    assert max(profile.backward_seconds) == profile.backward_seconds[loop]
