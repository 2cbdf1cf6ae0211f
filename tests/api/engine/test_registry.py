"""Launchers that reach other hosts: set up by the operator, only named by a request."""

from typing import get_args

import pytest
from fastapi.testclient import TestClient

from autosync.api.cli.options import set_up_launchers
from autosync.api.engine.registry import AutoLauncher, launcher_named
from autosync.api.engine.tuning_request import usual_scales
from autosync.environment import (
    PREFIX_VARIABLE,
    PYTHON_VARIABLE,
    RAY_ADDRESS_VARIABLE,
    SHARE_GPUS_VARIABLE,
)
from autosync.errors import NotFound, NotSupported
from autosync.trials.launchers.command_launcher import CommandLauncher
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.launchers.ray_launcher import RayLauncher
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.request_names import LauncherName
from tests.domains import domain_of, grid_cluster

HOSTS = ("command", "ray")


@pytest.fixture(autouse=True)
def _not_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PREFIX_VARIABLE, PYTHON_VARIABLE, RAY_ADDRESS_VARIABLE, SHARE_GPUS_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", HOSTS)
def test_not_set_up_is_said_with_the_way_out(name: str) -> None:
    with pytest.raises(NotSupported, match=r"not set up.*AUTOSYNC_") as raised:
        launcher_named(name)
    assert "`autosync tune`" in raised.value.remedy
    assert "only if `autosync serve` has it, too" in raised.value.remedy


def test_the_operators_choice_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, "ssh {host}")
    monkeypatch.setenv(PYTHON_VARIABLE, "/opt/bin/python")
    monkeypatch.setenv(RAY_ADDRESS_VARIABLE, "head:6379")
    assert launcher_named("command") == CommandLauncher("ssh {host}", "/opt/bin/python")
    assert launcher_named("ray") == RayLauncher("head:6379")


@pytest.mark.parametrize("allowed", [False, True])
def test_every_launcher_shares_gpus_where_the_operator_lets_it(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, "ssh {host}")
    monkeypatch.setenv(RAY_ADDRESS_VARIABLE, "head:6379")
    monkeypatch.setenv(SHARE_GPUS_VARIABLE, "")
    set_up_launchers(share_gpus=allowed)
    for name in get_args(LauncherName):
        launcher = launcher_named(name)
        assert isinstance(
            launcher, AutoLauncher | TestbedLauncher | LocalLauncher | CommandLauncher | RayLauncher
        )
        assert launcher.share_gpus == allowed


def test_unknown_names_are_listed() -> None:
    with pytest.raises(NotFound, match="auto, testbed, local, command, ray"):
        launcher_named("slurm")


def test_real_clusters_are_not_scaled() -> None:
    domain = domain_of(cluster=grid_cluster(8, gbps=25.0))
    assert usual_scales(domain, "command") == (1.0, 1.0)
    assert usual_scales(domain, "testbed") != (1.0, 1.0)


def test_a_request_names_the_launcher_and_no_command(
    client: TestClient, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {**ids, "launcher": "command"}
    refused = client.post("/v1/tunings", json=body)
    assert refused.status_code == 409
    assert "not set up" in refused.text
    assert client.get("/v1/tunings").json()["items"] == []
    monkeypatch.setenv(PREFIX_VARIABLE, "ssh {host}")
    assert client.post("/v1/tunings", json={**body, "prefix": "id"}).status_code == 422
    queued = client.post("/v1/tunings", json=body).json()
    assert queued["launcher"] == "command"
    assert (queued["byte_scale"], queued["time_scale"]) == (1.0, 1.0)
