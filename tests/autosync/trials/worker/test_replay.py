"""The replay behaves like the model it stands for, and spends the time that the model computes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from autosync.bundle import Bundle
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.graph import ModelGraph
from autosync.runtime.torch_engines import bucket_limits_mebibytes
from autosync.strategy import AllReduce
from autosync.trials.contract import Workload
from autosync.trials.scales import parameter_names
from autosync.trials.worker import replay_compute
from autosync.trials.worker.replay import Replay, ReplayOperation, gradient_value
from autosync.trials.worker.replay_compute import (
    TIMER_LATENESS_SECONDS,
    ReplayCompute,
    Stretch,
    WaitedCompute,
)
from autosync.trials.worker.training_job import ReplayJob, build_replay, make_optimizer
from tests.autosync.trials.strategies import ddp, lagging, small_domain
from tests.domains import chain_graph, domain_of


def replayed(domain: Domain, byte_scale: float = 1.0, rank: int = 0) -> Replay:
    return Replay(domain, byte_scale, rank, WaitedCompute(slowness=1e-6))


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


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was asked of sleep; no time passes."""
    asked: list[float] = []
    standing = SimpleNamespace(monotonic=lambda: 0.0, sleep=asked.append)
    monkeypatch.setattr(replay_compute, "time", standing)
    return asked


def test_predicted_waits_for_swapped_activations_lengthen_compute(slept: list[float]) -> None:
    compute = WaitedCompute(slowness=2.0)
    compute.set_batch_factor(0.5)
    compute.set_slowdown(1.5)
    compute.start()
    compute.run(Stretch(0.2))
    assert slept == [pytest.approx(2.0 * 0.5 * 1.5 * 0.2 - TIMER_LATENESS_SECONDS)]


def test_a_replay_takes_a_slowdown_on_and_off_with_its_trials(slept: list[float]) -> None:
    domain = small_domain()
    job = build_replay(Workload(domain), 0)
    assert isinstance(job, ReplayJob)
    assert isinstance(job.compute, WaitedCompute)
    job.compute.slowness = 1.0
    for slowdown in (1.5, 1.0):
        job.begin("key", ddp(domain))
        job.compute.set_slowdown(slowdown)
        slept.clear()
        job.compute.start()
        job.compute.run(Stretch(0.2))
        assert slept == [pytest.approx(slowdown * 0.2 - TIMER_LATENESS_SECONDS)]


class MovingClock:
    """Time passes while it sleeps, and where it is told to."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(("of_the_replay", "left"), [(True, 0.04), (False, 0.05)])
def test_only_a_models_own_gaps_are_stalls(
    of_the_replay: bool, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device goes on while the replay does what no model does; it stands still for a wait."""
    clock = MovingClock()
    monkeypatch.setattr(replay_compute, "time", clock)
    compute = WaitedCompute()
    compute.start()
    clock.now += 0.01
    if of_the_replay:
        compute.resume()
    compute.run(Stretch(0.05))
    assert clock.slept == [pytest.approx(left - TIMER_LATENESS_SECONDS)]


def test_a_replay_resumes_between_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its autograd nodes are all made at the end of forward; a model's are made beside it."""
    job = build_replay(Workload(small_domain()), 0)
    assert isinstance(job.compute, WaitedCompute)
    told: list[str] = []
    for name in ("start", "run", "resume"):
        monkeypatch.setattr(job.compute, name, lambda *args, name=name: told.append(name))
    loss = job.model(torch.zeros((), requires_grad=True))
    assert told[0] == "start"
    assert told[-1] == "resume"
    assert told.count("resume") == 1
    loss.backward()
    assert set(told[told.index("resume") + 1 :]) == {"run"}


class Timed(ReplayCompute):
    """A compute that notes at which batch factor each stretch runs."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.ran: list[float] = []

    def set_batch_factor(self, factor: float) -> None:
        self.factor = factor

    def run(self, stretch: Stretch) -> None:
        self.ran.append(self.factor)


def test_a_plan_that_lags_is_filled_by_iterations_that_compute_nothing() -> None:
    domain, compute = small_domain(), Timed()
    model = Replay(domain, 1.0, 0, compute)
    signal = torch.zeros((), requires_grad=True)
    job = ReplayJob(model, make_optimizer("sgd", model), compute, signal, domain.world_size, 0)

    def factors(bundle: Bundle) -> list[set[float]]:
        job.begin("of two", bundle)
        found = []
        for _ in range(3):
            compute.ran.clear()
            job.loss(model).backward()
            found.append(set(compute.ran))
        return found

    assert factors(lagging(domain, AllReduce(0), 2)) == [{0.0}, {0.0}, {1.0}]
    assert factors(ddp(domain)) == [{1.0}] * 3
