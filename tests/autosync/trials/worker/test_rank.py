"""A rank meets the others in rank 0's store, or says where it looked for it; its values between
plans."""

import socket
from dataclasses import replace
from datetime import timedelta

import pytest
import torch

from autosync.errors import NotSupported
from autosync.trials.commands import MeasuredIterations, PassDone, RunPass
from autosync.trials.contract import TrialRequest, Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.worker import rank
from autosync.trials.worker.rank import Rank, opened_store
from autosync.trials.worker.training_job import ReplayJob, build_replay
from tests.autosync.trials.strategies import ddp, small_domain


def test_a_store_that_is_not_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a firewall. Else the launcher ends the wait, and knows no reason."""
    monkeypatch.setattr(rank, "CONNECT_TIMEOUT", timedelta(seconds=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RuntimeError, match=rf"127\.0\.0\.1.*{port}"):
        opened_store("127.0.0.1", port, is_master=False)


def test_who_has_reached_it_waits_as_long_as_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "CONNECT_TIMEOUT", timedelta(seconds=1))
    store = opened_store("127.0.0.1", 0, is_master=True)
    other = opened_store("127.0.0.1", store.port, is_master=False)
    assert other.timeout == rank.GROUP_TIMEOUT  # type: ignore[attr-defined]
    other.set("met", "yes")
    assert store.get("met") == b"yes"


def test_replicas_are_equal_again_behind_a_plan_that_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks that refuse in the middle of iterations may have applied different updates, and an
    exact plan keeps values that are unequal so."""
    workload = Workload(small_domain())
    one = Rank([])
    one._workload, one._job = workload, build_replay(workload, 0)
    equal: list[str] = []

    def refused(command: RunPass, *_: object, **__: object) -> PassDone:
        if command.key == "refused":
            raise NotSupported("on purpose.")
        return PassDone(MeasuredIterations((), 0.0, 0.0, 0.0, 0.0, 0), "", None, 0.0)

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(rank, "measure_pass", refused)
    monkeypatch.setattr(Rank, "_make_equal", lambda *_: equal.append("again"))
    bundle = ddp(workload.domain)
    assert one.run_pass(RunPass("runs", 0, 1, False, bundle)).digest == 0.0
    with pytest.raises(NotSupported):
        one.run_pass(RunPass("refused", 0, 1, False, bundle))
    assert equal == []
    for key in ("after", "and on"):
        one.run_pass(RunPass(key, 0, 1, False, bundle))
    assert equal == ["again"]


OWN = ("own=tests.autosync.trials.worker.test_rank:build_unequal",)


def build_unequal(workload: Workload, number: int) -> ReplayJob:
    """Begins as a model whose values each rank has drawn for itself."""
    job = build_replay(workload, number)
    with torch.no_grad():
        for parameter in job.model.parameters():
            parameter.add_(number)
    return replace(job, scaled=False)


def test_ranks_of_a_model_begin_with_the_values_of_rank_0() -> None:
    workload = Workload(small_domain(), "own")
    with LocalLauncher(workloads=OWN, repeats=0).open(workload) as pool:
        assert pool.run(TrialRequest("first", ddp(workload.domain))).error is None


def test_a_model_is_not_measured_at_a_scale() -> None:
    """Its messages and its compute would be whole, over links that are scaled."""
    workload = Workload(small_domain(), "own", byte_scale=0.5)
    with LocalLauncher(workloads=OWN, repeats=0).open(workload) as pool:
        error = pool.run(TrialRequest("scaled", ddp(workload.domain))).error
    assert error is not None
    assert (error.kind, "byte_scale is 0.5" in error.message) == ("refused", True)
