"""The container files name what exists, and what they start works: run here without an engine, by
the same entry point, commands and checks, over a real PostgreSQL."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import uvicorn
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from autosync import environment
from autosync.api.cli.main import app
from autosync.api.engine.api_keys import make_key
from tests.api.databases import opened, postgresql_database
from tests.api.http.serving import free_port, served
from tests.packaging.builds import INSTRUCTIONS, ROOT

FOLDER = ROOT / "packaging"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
DEPLOYMENT: dict[str, Any] = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
LOCK = FOLDER / "requirements.lock"
ENTRYPOINT = FOLDER / "entrypoint.sh"
KNOWN_KEYS = {
    *("image", "build", "restart", "read_only", "tmpfs", "cap_drop", "security_opt", "command"),
    *("ports", "environment", "secrets", "volumes", "depends_on", "healthcheck"),
    "stop_grace_period",
}
"""Of the Compose specification, those that are used."""
OF_POSTGRESQL = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD_FILE"}
"""Variables of its official image."""
OF_UVICORN = {"FORWARDED_ALLOW_IPS"}
"""Variables that it reads itself."""
START_SECONDS = 300.0
"""Not what it takes, but when to give up."""


def substituted(text: str) -> str:
    """With the defaults of Compose's ${NAME:-default}."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def command_of(service: str) -> list[str]:
    return [substituted(word) for word in COMPOSE["services"][service]["command"]]


def of_container(keyword: str) -> list[str]:
    return [rest for word, rest in INSTRUCTIONS if word == keyword]


def test_services_have_only_what_compose_knows() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"database", "service", "worker"}
    for name, service in services.items():
        assert set(service) <= KNOWN_KEYS, name
        for secret in service["secrets"]:
            assert secret in COMPOSE["secrets"]
        for mount in service["volumes"]:
            assert mount.partition(":")[0] in COMPOSE["volumes"]
        for other, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in services[other]
    for name in ("service", "worker"):
        build = services[name]["build"]
        assert (FOLDER / build["context"] / build["dockerfile"]).resolve().is_file()
        assert (services[name]["cap_drop"], services[name]["read_only"]) == (["ALL"], True)


@pytest.mark.parametrize(
    "words", [command_of("service"), command_of("worker"), POD["containers"][0]["args"]]
)
def test_commands_and_their_options_exist(words: list[str]) -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    found = command.commands[words[0]]
    assert found.make_context(words[0], words[1:]).params


def test_the_containers_own_command_exists() -> None:
    (arguments,) = map(json.loads, of_container("CMD"))
    test_commands_and_their_options_exist(arguments)
    (entry,) = map(json.loads, of_container("ENTRYPOINT"))
    assert entry == ["autosync-entrypoint"]
    assert f"/usr/local/bin/{entry[0]}" in " ".join(of_container("COPY"))


def test_variables_are_those_that_autosync_reads() -> None:
    read = {value for name, value in vars(environment).items() if name.endswith("_VARIABLE")}
    by_file = re.search(r"for name in ([\w ]+);", ENTRYPOINT.read_text())
    assert by_file is not None
    read |= {f"{name}_FILE" for name in by_file[1].split()}
    for name, service in COMPOSE["services"].items():
        known = OF_POSTGRESQL if name == "database" else read | OF_UVICORN
        assert set(service["environment"]) <= known, name


def test_a_proxy_of_the_machine_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service sees it at the bridge's address, and its port is open to the machine alone."""
    service = COMPOSE["services"]["service"]
    assert all(mapping.startswith("127.0.0.1:") for mapping in service["ports"])
    for name in OF_UVICORN:
        monkeypatch.setenv(name, service["environment"][name])
    seen: list[tuple[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["scheme"], scope["client"][0]))

    trusted = uvicorn.Config(app, log_config=None).forwarded_allow_ips
    heard: Any = ProxyHeadersMiddleware(app, trusted)
    headers = [(b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"203.0.113.7")]
    gateway = {"type": "http", "scheme": "http", "client": ("172.18.0.1", 4242), "headers": headers}
    asyncio.run(heard(gateway, None, None))
    assert seen == [("https", "203.0.113.7")]


def test_ports_are_the_same_everywhere() -> None:
    command = command_of("service")
    port = command[command.index("--port") + 1]
    service = COMPOSE["services"]["service"]
    assert [mapping.split(":")[-1] for mapping in service["ports"]] == [port]
    assert f"127.0.0.1:{port}/v1/health" in service["healthcheck"]["test"][-1]
    assert of_container("EXPOSE") == [port]


def test_nothing_runs_as_root_and_no_secret_is_written_down() -> None:
    users = of_container("USER")
    assert users[-1].isdecimal()
    assert int(users[-1]) > 0
    stage = [word for word, _ in INSTRUCTIONS]
    assert stage.index("USER", len(stage) - stage[::-1].index("FROM")) < stage.index("CMD")
    for service in COMPOSE["services"].values():
        for name, value in service["environment"].items():
            assert name.endswith("_FILE") or not re.search("TOKEN|PASSWORD|SECRET", name)
            assert not re.search(r"://[^/@]*:[^/@]*@", str(value))
    ignored = (ROOT / ".gitignore").read_text() + (ROOT / ".dockerignore").read_text()
    assert ignored.count("packaging/secrets") == 2


def test_copied_files_exist() -> None:
    for rest in of_container("COPY"):
        *sources, _ = rest.split()
        for source in sources:
            assert source.startswith(("--from", "/opt/")) or (ROOT / source).exists(), source


def test_the_lock_fits_the_bounds_and_has_hashes() -> None:
    """Hashes let pip refuse what the lock does not name, so its own check is that it is whole."""
    blocks = re.split(r"\n(?=[a-z])", LOCK.read_text())[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    locked = dict(block.split(maxsplit=1)[0].split("==") for block in blocks)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["tune"], *extras["service"], *extras["postgresql"]]
    for requirement in map(Requirement, asked):
        if requirement.name not in ("torch", "autosync"):
            found = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(found), requirement
    assert "torch" not in locked
    (build,) = (rest for rest in of_container("RUN") if "--require-hashes" in rest)
    assert f"-r {LOCK.relative_to(ROOT)}" in build


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with `autosync` and `python`, as the container's PATH has them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, arguments in (("autosync", "-m autosync.api.cli.main "), ("python", "")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
        script.chmod(0o755)
    return folder


@contextmanager
def entered(
    folder: Path, programs: Path, words: list[str], **variables: str
) -> Iterator["subprocess.Popen[str]"]:
    """What a container does with these words."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOSYNC_")}
    path = f"{programs}:{os.environ['PATH']}"
    settings = {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder)}
    process = subprocess.Popen(
        ["sh", str(ENTRYPOINT), *words],
        cwd=folder,
        env={**settings, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def test_a_secret_that_is_not_there_is_named(tmp_path: Path, programs: Path) -> None:
    with entered(tmp_path, programs, ["--version"], AUTOSYNC_TOKEN_FILE="/nowhere") as process:
        out, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 2
    assert "AUTOSYNC_TOKEN_FILE names /nowhere" in out


def test_a_pod_is_one_worker_a_machine_that_nothing_connects_to() -> None:
    spec, (worker,) = DEPLOYMENT["spec"], POD["containers"]
    labels = spec["template"]["metadata"]["labels"]
    assert (DEPLOYMENT["apiVersion"], DEPLOYMENT["kind"]) == ("apps/v1", "Deployment")
    assert spec["selector"]["matchLabels"] == labels
    (apart,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == labels
    assert "ports" not in worker
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["runAsUser"] == int(of_container("USER")[-1])
    assert worker["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in POD["volumes"]}
    assert mounted["state"] == of_container("VOLUME")[-1]
    (variable,) = worker["env"]
    assert variable["name"] == "AUTOSYNC_TOKEN_FILE"
    assert Path(variable["value"]).parent == Path(mounted["token"])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_pods_command_takes_tunings_from_a_service(
    tmp_path: Path, programs: Path, sqlite_url: str
) -> None:
    """Its own words, with the address of a real service in place of the example's, and a key of
    scope worker in a file."""
    with opened(sqlite_url) as database:
        key = make_key(database, "pods", "worker")
    token = tmp_path / "token"
    token.write_text(f"{key.text}\n")
    with served(sqlite_url) as service:
        port = service.address.rpartition(":")[2]
        words = [
            word.replace("https://tuner.example.com", service.address)
            for word in POD["containers"][0]["args"]
        ]
        assert service.address in words
        assert status(port, "/v1/ready") == 503  # no worker yet
        with entered(tmp_path, programs, words, AUTOSYNC_TOKEN_FILE=str(token)) as worker:
            wait(worker, lambda: status(port, "/v1/ready") == 200)
        assert status(port, "/v1/ready") == 503  # it said that it ends


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_service_and_a_worker_as_compose_starts_them(
    tmp_path: Path, programs: Path, postgresql: str
) -> None:
    """With a free port in place of theirs, and the database's address in a file."""
    port = str(free_port())
    token = tmp_path / "token"
    token.write_text("from a file\n")
    check = COMPOSE["services"]["service"]["healthcheck"]["test"][1:]
    with postgresql_database(postgresql) as url:
        (tmp_path / "url").write_text(url)
        files = {"AUTOSYNC_DATABASE_URL_FILE": str(tmp_path / "url")}
        words = [word.replace("8080", port) for word in command_of("service")]
        serving = entered(tmp_path, programs, words, AUTOSYNC_TOKEN_FILE=str(token), **files)
        with serving as service:
            healthy = [word.replace("8080", port) for word in check]
            wait(service, lambda: subprocess.run(healthy, capture_output=True).returncode == 0)
            assert status(port, "/v1/ready") == 503  # no worker yet
            assert status(port, "/v1/tunings") == 401
            assert status(port, "/v1/tunings", "from a file") == 200
            with entered(tmp_path, programs, command_of("worker"), **files) as worker:
                wait(worker, lambda: status(port, "/v1/ready") == 200)


def wait(process: "subprocess.Popen[str]", done: Any) -> None:
    until = time.monotonic() + START_SECONDS
    while not done():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until, "it did not start"
        time.sleep(0.2)


def status(port: str, path: str, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://127.0.0.1:{port}{path}"
    return httpx.get(url, headers=headers, timeout=START_SECONDS).status_code
