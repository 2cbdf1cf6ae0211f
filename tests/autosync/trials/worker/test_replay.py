"""The replay behaves like the model it stands for, seen from hooks and parameters."""

from dataclasses import replace

import pytest
import torch

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.runtime.torch_engines import bucket_limits_mebibytes
from autosync.trials.scales import parameter_names
from autosync.trials.worker.replay import Replay, ReplayOperation, gradient_value, replay_module
from autosync.trials.worker.replay_compute import WaitedCompute
from autosync.trials.worker.training_job import make_optimizer
from tests.autosync.trials.strategies import small_domain
from tests.domains import chain_graph, domain_of


def replayed(domain: Domain, byte_scale: float = 1.0, rank: int = 0) -> Replay:
    return replay_module(domain, byte_scale, rank, WaitedCompute(slowness=1e-6))


def ready_order(model: Replay) -> list[str]:
    """The names of the parameters in the order in which one backward pass fills them."""
    order: list[str] = []
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
        for name, parameter in model.named_parameters()
    ]
    model(torch.zeros((), requires_grad=True)).backward()
    for handle in handles:
        handle.remove()
    return order


def tied_graph() -> ModelGraph:
    """A chain whose first variable is used again by the last operation, as a tied embedding."""
    graph = chain_graph()
    last = replace(graph.operations[-1], variables=(5, 0))
    return replace(graph, operations=(*graph.operations[:-1], last))


@pytest.mark.parametrize("graph", [chain_graph(), tied_graph(), chain_graph(sparse=(0,))])
def test_gradients_appear_in_the_graphs_order(graph: ModelGraph) -> None:
    names = parameter_names(graph)
    wanted = [names[variable] for variable in graph.gradient_order]
    assert ready_order(replayed(domain_of(graph))) == wanted


def test_backward_need_not_reverse_forward() -> None:
    graph = chain_graph()
    shuffled = (3, 5, 4, 0, 2, 1)
    graph = replace(graph, backward_order=shuffled, gradient_order=shuffled)
    names = parameter_names(graph)
    assert ready_order(replayed(domain_of(graph))) == [names[v] for v in shuffled]


def test_gradients_have_the_scaled_sizes_and_differ_by_rank() -> None:
    domain = domain_of(chain_graph(sparse=(2,)))
    for rank in (0, 1):
        model = replayed(domain, 0.25, rank)
        model(torch.zeros((), requires_grad=True)).backward()
        for variable, parameter in zip(domain.graph.variables, model.parameters(), strict=True):
            assert parameter.grad is not None
            if variable.sparse:
                assert parameter.shape == (32, 64)
                assert parameter.grad.is_sparse
                assert parameter.grad._nnz() == 1  # 2 touched rows, a quarter, at least one
            else:
                assert parameter.shape == (-(-variable.elements // 4),)
                assert bool((parameter.grad == gradient_value(rank)).all())


def test_a_sparse_variable_may_have_a_dense_gradient() -> None:
    model = replayed(domain_of(chain_graph(sparse=(2,))))
    table = next(value for name, value in model.named_parameters() if name.endswith("weight"))
    for of, sparse in (((), False), ((2,), True)):
        model.show_rows(of)
        table.grad = None
        model(torch.zeros((), requires_grad=True)).backward()
        assert table.grad is not None
        assert table.grad.is_sparse == sparse


def test_operations_run_in_forward_order_before_what_they_gate() -> None:
    model = replayed(domain_of(chain_graph()))
    seen: list[str] = []
    for name, operation in model.operations.items():
        operation.register_forward_pre_hook(lambda *_, name=name: seen.append(name))
    model(torch.zeros((), requires_grad=True))
    assert seen == ["0", "1", "2", "3", "4", "5"]


def test_every_profiled_second_is_waited_for_once() -> None:
    graph = chain_graph()
    seconds = tuple(0.1 * (i + 1) for i in range(6))
    bare = replace(graph.operations[0], variables=()), replace(graph.operations[3], variables=())
    operations = (bare[0], *graph.operations[1:3], bare[1], *graph.operations[4:])
    first_uses = (replace(operations[1], variables=(0, 1)), operations[2])
    last_uses = (replace(operations[4], variables=(3, 4)), operations[5])
    graph = replace(graph, operations=(operations[0], *first_uses, operations[3], *last_uses))
    graph = replace(graph, gradient_after=(1, 1, 2, 4, 4, 5))
    domain = domain_of(graph)
    profile = replace(domain.profile, forward_seconds=seconds, backward_seconds=seconds)
    model = replayed(replace(domain, profile=profile))
    owners = [one for one in model.operations.values() if isinstance(one, ReplayOperation)]
    owned = [owner.stretch.seconds for owner in owners]
    forward = [model.head.seconds, *owned]
    assert forward == pytest.approx([0.1, 0.2, 0.3 + 0.4, 0.5, 0.6])
    backward = [stage.stretch.seconds for stage, _ in reversed(model.backward_stages)]
    assert backward == pytest.approx([0.6, 0.5, 0.4 + 0.3, 0.2, 0.1])


def test_ddp_keeps_its_small_first_bucket_at_its_default_size() -> None:
    assert bucket_limits_mebibytes(25 * 2**20 // 16, 1 / 16) == [1 / 16, 25 / 16]
    assert bucket_limits_mebibytes(0, 1.0) == [1.0, 25.0]
    assert bucket_limits_mebibytes(5 * 2**20, 0.5) == [5.0]


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(InvalidInput, match="lion"):
        make_optimizer("lion", replayed(small_domain()))
