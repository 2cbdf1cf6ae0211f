"""All-gathers that leave while the wire is idle: what the runtime sends when, and what the
timeline simulator plays."""

import time
from dataclasses import replace

from torch import Tensor, nn

from autosync.codes import Channel
from autosync.plan import compile_plans
from autosync.population import encode
from autosync.runtime.execution.execution_trace import ExecutionTrace, MessageEvent
from autosync.simulator.timeline.timeline_simulator import play_one
from tests.autosync.runtime.beside_ddp import Script, beside_ddp
from tests.autosync.runtime.cases import Case, attached, domain, loss_of, make_model, strategy
from tests.autosync.runtime.parts import linear
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.traces import crowding
from tests.autosync.runtime.training import OVERLAP

IDLE = replace(OVERLAP, gather="when_idle")
SECONDS = 0.02
"""That a rank computes before each gradient."""
PATIENCE_SECONDS = 60.0


def gathers_of(trace: ExecutionTrace, iteration: int) -> list[MessageEvent]:
    """All-gathers of an iteration that have landed."""
    channels = (Channel.GATHER, Channel.VALUE)
    return [e for e in trace.events if e.iteration == iteration and e.channel in channels]


def gathered_in_backward(rank: int, world: int, case: Case) -> tuple[int, str, list[int]]:
    """How many all-gathers had landed when backward() returned, what the rule forbids, and the
    order in which all of them were issued in the last iteration.

    Every gradient comes a little after the one before, those of the first layer once an all-gather
    has landed. Where none does, backward() goes on after PATIENCE_SECONDS."""
    trace, iteration = ExecutionTrace(), 0

    def hold(gradient: Tensor) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not gathers_of(trace, iteration) and time.monotonic() < deadline:
            time.sleep(0.001)

    model = make_model(case.model)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: time.sleep(SECONDS))
    linear(model, 0).weight.register_hook(hold)
    model, optimizer, attachment = attached(case, world, trace, model=model)
    for iteration in range(case.iterations):
        optimizer.zero_grad()
        loss_of(model, iteration, rank).backward()
        returned = time.monotonic()
        optimizer.step()
    attachment.detach()
    gathers = gathers_of(trace, case.iterations - 1)
    landed = sum(event.end_seconds < returned for event in gathers)
    issued = [e.message for e in sorted(gathers, key=lambda event: event.start_seconds)]
    return landed, crowding(trace, attachment.engine.plan, case.iterations), issued


def test_all_gathers_leave_between_gradients_and_not_in_the_next_forward(pair: Ranks) -> None:
    case = Case(method="rs", groups=5, schedule=IDLE, iterations=3)
    for landed, forbidden, _ in pair.run(gathered_in_backward, case):
        assert landed > 0
        assert forbidden == ""


def test_the_runtime_sends_them_in_the_order_that_the_timeline_plays(pair: Ranks) -> None:
    case = Case(method="rs", groups=5, schedule=IDLE, iterations=2)
    where = domain(make_model(case.model), 2)
    population = encode([strategy(case, where.graph, 2)], where)
    plans = compile_plans(population, where)
    played = play_one(plans, population, where, 0)
    gathers = [m for m in range(plans.messages) if plans.channel[m] == Channel.GATHER]
    predicted = sorted(gathers, key=lambda message: played.issued[message])
    for _, _, issued in pair.run(gathered_in_backward, case):
        assert issued == predicted


def reading_ahead(rank: int) -> Script:
    """Rank 1 reads a sum before its step(), which rank 0 has long called."""

    def script(model: nn.Module, moment: str, iteration: int) -> None:
        if rank == 1 and moment == "gradients":
            time.sleep(SECONDS)
            gradient = list(model.parameters())[2].grad
            assert gradient is not None
            float(gradient.sum())

    return script


def test_a_rank_that_waits_for_a_sum_before_its_step_gets_it(pair: Ranks) -> None:
    """Rank 0's values, which wait for rank 1's step(), do not keep the sum back."""
    case = Case(method="mixed", groups=4, schedule=IDLE, iterations=3)
    assert max(pair.run(beside_ddp, case, reading_ahead)) < 2e-6
