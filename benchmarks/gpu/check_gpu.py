"""Runs the stages of `scripts/check_gpu`, each in a process group and a time of its own.

A stage that fails does not stop the next. Each writes a log and its results into the folder as it
goes, and `summary.json` says how all ended.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.stages import DATABASE, ROOT, Setting, Stage, stages_of, write_cluster
from benchmarks.output import write_json

DEFAULT_MINUTES = 13.0
LEAVE_SECONDS = 15.0
"""What a stage that is told to stop (SIGINT) is given to write what it has."""
LEAST_SECONDS = 10.0
"""No stage begins with less."""
TAIL_LINES = 15

NEEDED = {
    "alembic": "alembic", "annotated-types": "annotated_types", "anyio": "anyio",
    "fastapi": "fastapi", "h11": "h11", "httpx": "httpx", "hypothesis": "hypothesis",
    "jinja2": "jinja2", "mako": "mako", "markupsafe": "markupsafe", "numba": "numba",
    "numpy": "numpy", "pandas": "pandas", "pyarrow": "pyarrow", "pydantic": "pydantic",
    "pydantic-core": "pydantic_core", "pytest": "pytest", "pytest-timeout": "pytest_timeout",
    "pytest-xdist": "xdist", "python-multipart": "python_multipart", "pyyaml": "yaml",
    "rich": "rich", "safetensors": "safetensors", "scipy": "scipy",
    "sqlalchemy": "sqlalchemy", "starlette": "starlette", "threadpoolctl": "threadpoolctl",
    "torch": "torch", "torch-geometric": "torch_geometric", "typer": "typer",
    "typing-inspection": "typing_inspection", "uvicorn": "uvicorn",
}  # fmt: skip
"""Packages that the stages import, those that these need among them, and the name of a module of
each: a machine without a network must have them all."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """status: `ok`, or what went wrong. files: what it left in the folder."""

    stage: str
    title: str
    status: str
    seconds: float
    files: tuple[str, ...]


def missing_packages() -> list[str]:
    return [package for package, module in NEEDED.items() if find_spec(module) is None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/check_gpu", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("gpu-records"))
    parser.add_argument("--stages", metavar="1,2", help="these alone, by number or name")
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES, help="for all stages")
    parser.add_argument("--needs", action="store_true", help="print packages that are missing")
    options = parser.parse_args()
    missing = missing_packages()
    if options.needs:
        print("\n".join(missing))
        return
    if missing:
        sys.exit(f"this Python ({sys.executable}) lacks: {' '.join(missing)}. Install them, or put "
                 "a folder that holds them on PYTHONPATH.")  # fmt: skip
    setting, facts = setting_for(options.folder.resolve())
    stages = chosen(stages_of(setting), options.stages)
    deadline = time.monotonic() + 60 * options.minutes
    outcomes: list[Outcome] = []
    with kernels_compiled(setting, beside=stages[0].name == "nccl-tests"):
        for stage in stages:
            left = deadline - time.monotonic()
            seconds = min(stage.seconds * options.minutes / DEFAULT_MINUTES, left - LEAVE_SECONDS)
            print(f"{stage.name}: {stage.title}, at most {max(seconds, 0):.0f} s", flush=True)
            outcomes.append(run_stage(stage, setting, seconds))
            write_summary(setting, facts, outcomes)
    print_table(setting, outcomes)
    sys.exit(any(outcome.status != "ok" for outcome in outcomes))


def setting_for(folder: Path) -> tuple[Setting, dict[str, Any]]:
    """By the environment, and what the machine has."""
    from autosync.cluster.devices import device_type_of_gpu
    from benchmarks.gpu.ranks import machine_facts, sharing_of

    device = os.environ.get("COMPUTE_DEVICE", "cuda")
    backend = os.environ.get("BACKEND", "nccl")
    if device not in ("cpu", "cuda") or backend not in ("gloo", "nccl"):
        sys.exit(f"COMPUTE_DEVICE={device} BACKEND={backend}: give cpu or cuda, and gloo or nccl.")
    facts = machine_facts()
    if device == "cuda" and "gpu" not in facts:
        sys.exit("torch sees no GPU here. BACKEND=gloo COMPUTE_DEVICE=cpu runs all stages without.")
    if device == "cpu" and backend == "nccl":
        sys.exit(
            "NCCL moves messages between GPUs alone: set BACKEND=gloo with COMPUTE_DEVICE=cpu."
        )
    folder.mkdir(parents=True, exist_ok=True)
    dry = device == "cpu"
    ranks = 2 if dry else 4
    setting = Setting(
        folder=folder,
        device="cpu" if dry else "cuda",
        backend="gloo" if backend == "gloo" else "nccl",
        model=os.environ.get("MODEL", "mobilenet_v2" if dry else "resnet50"),
        device_type="cpu" if dry else device_type_of_gpu(facts["gpu"]),
        ranks=ranks,
        launcher=os.environ.get("LAUNCHER", "local" if dry else "auto"),
    )
    write_cluster(setting)
    return setting, facts | {"sharing": sharing_of(ranks, device)}


def chosen(stages: tuple[Stage, ...], wanted: str | None) -> list[Stage]:
    if wanted is None:
        return list(stages)
    known = {str(number): stage for number, stage in enumerate(stages, 1)}
    known |= {stage.name: stage for stage in stages}
    unknown = [word for word in wanted.split(",") if word not in known]
    if unknown:
        sys.exit(f"no stage is called {unknown[0]!r}. There are: {', '.join(known)}.")
    return [known[word] for word in wanted.split(",")]


@contextmanager
def kernels_compiled(setting: Setting, beside: bool) -> Iterator[None]:
    """The ranking kernels of a tuning, once, which takes a minute. beside: on another core while
    the first stage runs, which measures nothing."""
    with (setting.folder / "compiled.log").open("wb") as output:
        compiling = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "warm_caches.py")],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        if not beside:
            compiling.wait()
        yield
    finally:
        compiling.kill()
        compiling.wait()


def run_stage(stage: Stage, setting: Setting, seconds: float) -> Outcome:
    if seconds < LEAST_SECONDS:
        return Outcome(stage.name, stage.title, "no time was left", 0.0, ())
    for name in stage.results:  # of an earlier run
        (setting.folder / name).unlink(missing_ok=True)
    if stage.name == "tuning":
        for file in setting.folder.glob(f"{DATABASE}*"):  # with what SQLite keeps beside it
            file.unlink()
    begun, log = time.monotonic(), setting.folder / f"{stage.name}.log"
    log.unlink(missing_ok=True)
    status = "ok"
    for command in stage.commands:
        left = seconds - (time.monotonic() - begun)
        if status == "ok":
            status = run_command(command, stage.environment, log, left)
    if stage.name == "tuning":
        write_records(setting)
    lacking = [name for name in stage.results if not (setting.folder / name).is_file()]
    if status == "ok" and lacking:
        status = f"it wrote no {', '.join(lacking)}"
    took = time.monotonic() - begun
    print(f"{stage.name}: {status}, {took:.0f} s", flush=True)
    if status != "ok":
        lines = log.read_text(errors="replace").splitlines()
        print("".join(f"    {line}\n" for line in lines[-TAIL_LINES:]), flush=True)
    files = (log.name, *(name for name in stage.results if name not in lacking))
    return Outcome(stage.name, stage.title, status, round(took, 1), files)


def run_command(
    command: tuple[str, ...], environment: dict[str, str], log: Path, seconds: float
) -> str:
    """How it ended. Whatever it has started ends with it: ranks may spin in a kernel for ever."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    own = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**kept, **own, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )
        try:
            return ended(process, seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def heed_interrupts() -> None:
    """A shell's job in the background ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(process: subprocess.Popen[bytes], seconds: float) -> str:
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_SECONDS)
        return f"stopped after {seconds:.0f} s"
    return "ok" if status == 0 else f"exit status {status}"


def write_records(setting: Setting) -> None:
    """The tuning's trials as Parquet, also of one that was stopped. None of one that was killed
    before its database had tables."""
    from autosync.api.db import connect
    from autosync.api.views.runtimes import runtimes_parquet

    if (setting.folder / DATABASE).is_file():
        database = connect(f"sqlite:///{setting.folder / DATABASE}")
        try:
            records = b"".join(runtimes_parquet(database))
        except Exception as error:  # whatever a half-made database raises: the next stages count
            print(f"the records of the tuning cannot be read: {error}", flush=True)
            return
        (setting.folder / "runtimes.parquet").write_bytes(records)


def write_summary(setting: Setting, facts: dict[str, Any], outcomes: list[Outcome]) -> None:
    content = {
        "machine": facts,
        "backend": setting.backend,
        "device": setting.device,
        "stages": [asdict(outcome) for outcome in outcomes],
    }
    write_json(setting.folder / "summary.json", content)


def print_table(setting: Setting, outcomes: list[Outcome]) -> None:
    print(f"{'stage':14}{'seconds':>8}  {'status':30}files in {setting.folder}")
    for each in outcomes:
        print(f"{each.stage:14}{each.seconds:8.0f}  {each.status:30}{', '.join(each.files)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the stage at hand has been killed
        sys.exit(130)
