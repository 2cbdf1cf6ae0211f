"""`autosync submit slurm`: what the script asks Slurm for, and that it runs under a stand-in."""

import os
import subprocess
from pathlib import Path

import pytest

from autosync.api.db import migrate
from autosync.api.db.tables import TuningRow
from autosync.api.engine.api_keys import make_key
from autosync.bundle import load_bundle
from autosync.cluster import Cluster, Device, Node
from autosync.cluster.cluster_file import load_cluster, save_cluster
from tests.api.cli.command import LONGEST_SECONDS, autosync, environment, small_inputs, start
from tests.api.cli.fake_slurm import hosts_of_ranks, put_slurm
from tests.api.databases import opened
from tests.api.http.serving import served
from tests.waiting import until

QUICK = "--budget 2 --repeats 1 --proposals 50 --simulator timeline --byte-scale 0.1 --no-probe"
HARDWARE = "--per-host 1 --device cpu --port-gbps 1"


def script_of(folder: Path, *arguments: str) -> str:
    return autosync(folder, "submit", "slurm", *arguments, "--dry-run").stdout


def asked(script: str) -> list[str]:
    begin = "#SBATCH "
    return [line.removeprefix(begin) for line in script.splitlines() if line.startswith(begin)]


def commands(script: str) -> list[str]:
    return [line for line in script.splitlines() if " -m autosync " in line]


def pair_of_names(folder: Path) -> str:
    """A cluster file of this machine under two names."""
    nodes = tuple(Node(f"127.0.0.{host}", (Device("cpu"),), 0.956) for host in (1, 2))
    save_cluster(Cluster("names", nodes), folder / "names.yaml")
    return "names.yaml"


def test_a_job_on_any_hosts_describes_those_it_gets(tmp_path: Path) -> None:
    hardware = "--per-host 8 --device a100 --port-gbps 200 --intra-gbps 600"
    script = script_of(
        *(tmp_path, "resnet50", "--nodes", "2", "--hardware", hardware, "--python", "/venv/python"),
        *("--tune", "--budget 16", "--sbatch=--partition=gpu", "--sbatch=--time=01:00:00"),
    )
    assert asked(script) == [
        "--job-name=autosync",
        "--nodes=2",
        "--ntasks-per-node=8",
        "--gpus-per-node=8",
        "--output=autosync-%j.log",
        "--signal=B:TERM@60",
        "--partition=gpu",
        "--time=01:00:00",
    ]
    assert commands(script) == [
        f'/venv/python -m autosync import-cluster slurm {hardware} -o "tune-$SLURM_JOB_ID.yaml"',
        'exec /venv/python -m autosync tune resnet50 "tune-$SLURM_JOB_ID.yaml" --budget 16 '
        "--launcher command --prefix 'srun -w {host} -N1 -n1 --overlap --cpu-bind=none' "
        "--python /venv/python",
    ]
    assert list(tmp_path.glob("*.sbatch")) == []


@pytest.mark.parametrize(
    ("given", "database"),
    [({}, "sqlite:///autosync-7.db"), ({"AUTOSYNC_DATABASE_URL": "other"}, "other")],
)
def test_jobs_of_one_folder_share_no_file(
    tmp_path: Path, given: dict[str, str], database: str
) -> None:
    """They may run on different hosts, and SQLite takes processes of one host alone."""
    shows = tmp_path / "shows"
    shows.write_text('#!/bin/sh\necho "$AUTOSYNC_DATABASE_URL" "$@"\n')
    shows.chmod(0o755)
    hosts = ("--nodes", "2", "--hardware", HARDWARE)
    script = script_of(tmp_path, "resnet50", *hosts, "--python", str(shows))
    ran = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", **given},
        capture_output=True,
        text=True,
        check=True,
    )
    first, last = ran.stdout.splitlines()
    assert first.startswith(f"{database} -m autosync import-cluster slurm ")
    assert first.endswith(" -o tune-7.yaml")
    assert last.startswith(f"{database} -m autosync tune resnet50 tune-7.yaml --launcher command ")


def test_a_job_on_the_hosts_of_a_file_asks_for_these(tmp_path: Path) -> None:
    script = script_of(tmp_path, "resnet50", "example-4x2")
    hosts = [node.address for node in load_cluster("example-4x2").nodes]
    assert {"--nodes=4", "--gpus-per-node=2", f"--nodelist={','.join(hosts)}"} <= {*asked(script)}
    assert len(commands(script)) == 1


def test_hosts_with_unequal_gpus_are_refused(tmp_path: Path) -> None:
    """sbatch takes one number for all of them."""
    counts = {"big": 8, "small": 4}
    nodes = (Node(name, (Device("a100", count),), 95.6, 600.0) for name, count in counts.items())
    save_cluster(Cluster("unequal", tuple(nodes)), tmp_path / "unequal.yaml")
    error = autosync(tmp_path, "submit", "slurm", "resnet50", "unequal.yaml", code=2).stderr
    assert "host 'big' has 8 GPUs and host 'small' has 4" in " ".join(error.split())
    assert list(tmp_path.glob("*.sbatch")) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("resnet50",), "neither CLUSTER nor the hosts"),
        (("resnet50", "--nodes", "2", "--hardware", "--per-host 2"), "which"),
        (("resnet50", "example-4x1", "--tune", "--buget 3"), "No such option: --buget"),
        (("resnet50", "example-4x1", "--tune", "--budget many"), "Invalid value for '--budget'"),
        (("resnet50", "example-4x1", "--sbatch=partition"), "is no option of sbatch"),
        (("resnet50", "example-4x1", "--sbatch=--x\nrm -r"), "is no option of sbatch"),
        (("resnet50", "--url", "http://127.0.0.1:1"), "CLUSTER is missing"),
        (("resnet50", "no-cluster"), "no-cluster"),
        (("resnet50", "example-4x1", "--nodes", "2"), "--nodes and --hardware have no effect"),
        (("resnet50", "example-4x1", "--hardware", "--per-host 2"), "have no effect"),
    ],
)
def test_what_cannot_run_is_refused_before_it_waits_for_hosts(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    error = autosync(tmp_path, "submit", "slurm", *arguments, code=2).stderr
    assert told in " ".join(error.split())
    assert list(tmp_path.glob("*.sbatch")) == []


def sbatch(folder: Path, script: str, **variables: str) -> str:
    """What the job printed; it runs in the folder, as Slurm's do."""
    done = subprocess.run(
        ["sbatch", script],
        cwd=folder,
        env={**environment(folder), **put_slurm(folder), **variables},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_job_tunes_on_the_hosts_that_it_got(tmp_path: Path) -> None:
    small_inputs(tmp_path)
    told = autosync(
        *(tmp_path, "submit", "slurm", "chain.json", "--nodes", "2"),
        *("--hardware", HARDWARE, "--tune", QUICK),
    ).stderr
    assert "sbatch tune.sbatch" in told
    sbatch(tmp_path, "tune.sbatch")
    assert hosts_of_ranks(tmp_path) == {"127.0.0.1", "127.0.0.2"}
    bundle = load_bundle(tmp_path / "best.json")
    assert bundle.plan.world_size == 2
    assert "command (srun, 2 hosts)" in bundle.evidence.measured_on


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_job_runs_what_waits_at_a_service(tmp_path: Path) -> None:
    small_inputs(tmp_path)
    url = f"sqlite:///{tmp_path / 'service.db'}"
    migrate(url)
    with opened(url) as database:
        keys = {scope: make_key(database, scope, scope).text for scope in ("tune", "worker")}
    prefixed = {"AUTOSYNC_PREFIX": "srun -w {host}"}
    os.environ.update(prefixed)  # of the service: it offers the launcher
    try:
        with served(url) as service:
            names = pair_of_names(tmp_path)
            told = autosync(
                *(tmp_path, "submit", "slurm", "chain.json", names),
                *("--url", service.address, "--tune", QUICK),
            ).stderr
            assert f"autosync tune chain.json names.yaml --url {service.address}" in told
            os.environ["AUTOSYNC_TOKEN"] = keys["tune"]
            words = ("tune", "chain.json", names, "--url", service.address, *QUICK.split())
            tuning = start(tmp_path, *words, "--launcher", "command")
            until_queued(url)
            sbatch(tmp_path, "tune.sbatch", AUTOSYNC_TOKEN=keys["worker"])
            _, error = tuning.communicate(timeout=LONGEST_SECONDS)
    finally:
        for name in ("AUTOSYNC_TOKEN", *prefixed):
            os.environ.pop(name, None)
    assert tuning.returncode == 0, error
    assert "command (srun, 2 hosts)" in load_bundle(tmp_path / "best.json").evidence.measured_on
    assert hosts_of_ranks(tmp_path) == {"127.0.0.1", "127.0.0.2"}


def until_queued(url: str) -> None:
    with opened(url) as database:

        def queued() -> bool:
            with database.reading() as session:
                return session.query(TuningRow).count() > 0

        until(queued, "a tuning in the queue")
