"""From the ranks' answers to figures: hosts' own clocks, outside load, unequal replicas."""

from collections.abc import Sequence

import pytest

from autosync.trials.commands import MeasuredIterations, MessagesTimed, PassDone
from autosync.trials.contract import TrialError, TrialFailed, TrialRequest
from autosync.trials.measurement import (
    PassMeasurement,
    message_seconds,
    outside_load,
    pass_measurement,
    refuse_drift,
)
from tests.autosync.trials.strategies import ddp, small_domain

NAN = float("nan")


def messages(host: str, started: list[float], ended: list[float]) -> MessagesTimed:
    return MessagesTimed(host, tuple(started), tuple(ended))


def answer(
    host: str, cpu_seconds: float = 0.0, starts: Sequence[float] = (), sent_bytes: int = 0
) -> PassDone:
    measured = MeasuredIterations(tuple(starts), 0.0, cpu_seconds, 4.0, 10.0, sent_bytes)
    return PassDone(measured, host, None, 1.0)


def test_clocks_of_different_hosts_are_not_compared() -> None:
    """The second host has been up for longer, and has the shorter part of both messages."""
    first = messages("a", [5.0, 6.0], [5.5, 6.4])
    second = messages("b", [90_000.0, 90_001.0], [90_000.2, 90_001.1])
    assert message_seconds([first, second]) == pytest.approx([0.5, 0.4])


def test_ranks_of_a_host_share_its_clock() -> None:
    """A message begins when the last of them does, and ends with the last."""
    answers = [messages("a", [5.0], [5.5]), messages("a", [5.1], [5.3]), messages("a", [], [])]
    assert message_seconds(answers) == pytest.approx([0.4])


def test_an_iteration_begins_with_its_last_rank() -> None:
    """Of a host, and of several, whose clocks are compared by their first start."""
    answers = [
        answer("a", starts=(1.0, 2.0, 3.0), sent_bytes=90),
        answer("a", starts=(1.0, 2.5, 3.0), sent_bytes=60),
        answer("b", starts=(90_001.0, 90_002.0, 90_003.25), sent_bytes=30),
    ]
    request = TrialRequest("a", ddp(small_domain(3)), warmup=0, iterations=2)
    found = pass_measurement(request, answers, 0.0, nics=("a", "a", "b"))
    assert found.iteration_seconds == (1.5, 0.75)
    assert found.sent_bytes == (45, 15)
    assert pass_measurement(request, answers, 0.0).sent_bytes == ()


def test_load_is_what_the_ranks_of_a_machine_did_not_use() -> None:
    answers = [answer("a", 2.0), answer("a", 2.0)]
    assert outside_load(answers) == 0.0
    assert outside_load([*answers, answer("b", 1.0)]) == pytest.approx(0.3)


def test_periods_that_spread_are_contaminated_too() -> None:
    def disturbance(*periods: float) -> float:
        return PassMeasurement(periods, 0.0, 0.0, 0).disturbance

    assert disturbance(1.0, 1.01, 1.02) < 1
    assert disturbance(1.0, 1.0, 1.2) > 1


def test_replicas_that_end_unequal_are_no_result() -> None:
    shipped = ddp(small_domain())
    refuse_drift(shipped, [1.0, 1.0])
    refuse_drift(shipped, [float("nan"), float("nan")])  # two objects, as two ranks answer
    refuse_drift(shipped, [0.0, -0.0])
    for digests in ([NAN, 1.0], [1.0, 1.5]):
        with pytest.raises(TrialFailed, match="ended unequal") as caught:
            refuse_drift(shipped, digests)
        assert caught.value.error == TrialError("crashed", str(caught.value))
