"""From the ranks' answers to figures: hosts' own clocks, and replicas that ended equal."""

import pytest

from autosync.trials.measurement import refuse_drift
from autosync.trials.pool.worker_answers import message_seconds
from autosync.trials.trial_failure import TrialFailed
from autosync.trials.worker.commands import MessagesTimed
from tests.autosync.trials.strategies import ddp, small_domain

NAN = float("nan")


def answer(host: str, started: list[float], ended: list[float]) -> MessagesTimed:
    return MessagesTimed(host, tuple(started), tuple(ended))


def test_clocks_of_different_hosts_are_not_compared() -> None:
    """The second host has been up for longer, and has the shorter part of both messages."""
    first = answer("a", [5.0, 6.0], [5.5, 6.4])
    second = answer("b", [90_000.0, 90_001.0], [90_000.2, 90_001.1])
    assert message_seconds([first, second]) == pytest.approx([0.5, 0.4])


def test_ranks_of_a_host_share_its_clock() -> None:
    """A message begins when the last of them does, and ends with the last."""
    answers = [answer("a", [5.0], [5.5]), answer("a", [5.1], [5.3]), answer("a", [], [])]
    assert message_seconds(answers) == pytest.approx([0.4])


def test_replicas_that_are_all_nan_are_equal() -> None:
    shipped = ddp(small_domain())
    refuse_drift(shipped, [float("nan"), float("nan")])  # two objects, as two ranks answer
    refuse_drift(shipped, [0.0, -0.0])
    for digests in ([NAN, 1.0], [1.0, 1.5]):
        with pytest.raises(TrialFailed, match="ended unequal"):
            refuse_drift(shipped, digests)
