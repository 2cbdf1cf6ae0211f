"""`autosync doctor`: what works on this machine, and how to mend what does not."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import typer
from rich.markup import escape

from autosync.api.cli.console import out, print_json, print_table
from autosync.api.cli.options import DEFAULT_DATABASE, DatabaseUrl, Json
from autosync.environment import RAY_ADDRESS_VARIABLE
from autosync.errors import AutosyncError
from autosync.extras import EXTRA_OF, failed_import
from autosync.trials.machine import usable_cores

Verdict = Literal["works", "absent", "broken"]
"""absent: the rest works without it."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox")


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """What was tried. found: in words. remedy: how to get it where it does not work."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def check_machine(db: str) -> list[MachineCheck]:
    """All checks, in the order in which a tuning needs them."""
    return [
        _tried("torch", _torch, "Install it: `pip install torch`."),
        _tried("gloo", _gloo, "See that torch is built with gloo, and that the loopback is up."),
        _tried("NCCL", _nccl, "Install a torch built for CUDA on a machine with NVIDIA's driver."),
        _tried("testbed", _testbed, "Trials run over the loopback, whose links are not shaped."),
        _tried("machine lock", _machine_lock, ""),
        _tried(
            "kernel cache", _kernel_cache, "Name a folder that can be written: NUMBA_CACHE_DIR."
        ),
        _tried("database", lambda: _database(db), "Name another one with --db."),
        _tried("PostgreSQL", _postgresql, ""),
        _tried("Ray", _ray, ""),
        _tried("browser", _browser, ""),
    ]


class Absent(Exception):
    """It is not there, and the rest works without it. remedy: how to get it."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.remedy = remedy


def _tried(name: str, check: Callable[[], str], remedy: str) -> MachineCheck:
    try:
        return MachineCheck(name, "works", check())
    except Absent as absent:
        return MachineCheck(name, "absent", str(absent), absent.remedy)
    except AutosyncError as error:
        return MachineCheck(name, "broken", error.message, error.remedy or remedy)
    except ImportError as error:
        return _not_imported(name, error, remedy)
    except Exception as error:  # whatever it is, it is what the check is there to find
        return _broken(name, error, remedy)


def _not_imported(name: str, error: ImportError, remedy: str) -> MachineCheck:
    """Absent where an extra was not installed."""
    refusal = failed_import(error)
    if refusal is None:
        return _broken(name, error, remedy)
    absent = refusal.thing in EXTRA_OF and find_spec(refusal.thing) is None
    return MachineCheck(name, "absent" if absent else "broken", refusal.message, refusal.remedy)


def _broken(name: str, error: Exception, remedy: str) -> MachineCheck:
    first = (str(error).splitlines() or [""])[0][:200]
    return MachineCheck(name, "broken", f"{type(error).__name__}: {first}", remedy)


def _torch() -> str:
    import torch

    cores = usable_cores()
    return f"{torch.__version__}, {cores} {'core' if cores == 1 else 'cores'}"


def _gloo() -> str:
    """A process group of one rank, which sums a tensor."""
    import torch
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
        try:
            summed = torch.ones(4)
            dist.all_reduce(summed)
        finally:
            dist.destroy_process_group()
    return "sums a tensor over the loopback"


def _nccl() -> str:
    import torch
    import torch.distributed as dist

    from autosync.trials.gpus import MPS_CONTROL

    if not torch.cuda.is_available():
        remedy = "Needed for --compute-device cuda alone: a torch built for CUDA, and a GPU."
        raise Absent(f"torch {torch.__version__} sees no GPU", remedy)
    if not dist.is_nccl_available():
        raise Absent("this torch is built without it", "Install a torch built for CUDA.")
    version = ".".join(map(str, torch.cuda.nccl.version()))
    names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    sharing = "by CUDA MPS" if shutil.which(MPS_CONTROL) else "in turns, as there is no CUDA MPS"
    gpus = f"{torch.cuda.device_count()} x {', '.join(sorted(names))}"
    return f"{version}, {gpus}; ranks may share one {sharing} (--share-gpus)"


def _testbed() -> str:
    """Two namespaces with shaped links, built and removed."""
    from autosync.cluster import Cluster, Device, Node
    from autosync.errors import NotSupported
    from autosync.trials.testbed import namespaces

    nodes = tuple(Node(f"10.0.0.{i}", (Device("cpu", 1),), 0.1, 20.0) for i in (1, 2))
    try:
        made = namespaces.up(Cluster("doctor", nodes))
    except NotSupported as error:
        loopback = "Without it trials run over the loopback, whose links are not shaped."
        raise Absent(error.message, f"{error.remedy} {loopback}") from None
    namespaces.down(made)
    how = "in a user namespace" if made.user_namespace else "as root"
    return f"namespaces with shaped links, {how}"


def _machine_lock() -> str:
    from autosync.trials.pool.machine_lock import MEASURING, lock_holder, shared_machine_lock

    file = shared_machine_lock().folder / MEASURING
    holder = lock_holder(file)
    return f"{file}, " + (f"held by pid {holder}: it measures" if holder else "nobody measures")


def _kernel_cache() -> str:
    """Where compiled rankings lie; a folder that cannot be written compiles in every process."""
    import numba

    import autosync

    chosen = numba.config.CACHE_DIR
    beside = Path(autosync.__file__).resolve().parent
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"
    for folder in (Path(chosen),) if chosen else (beside, own):
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        if os.access(existing, os.W_OK):
            return str(folder)
    remedy = "Every process compiles for a minute: name a folder with NUMBA_CACHE_DIR."
    raise Absent("no folder for compiled kernels can be written", remedy)


def _database(db: str) -> str:
    from autosync.api.db.database import connect, masked, parse_url
    from autosync.api.db.schema_migration import current_revision, require_schema

    parsed = parse_url(db)
    if parsed.get_backend_name() == "sqlite":
        file = Path(str(parsed.database)).resolve()
        for place in (file.parent, file):
            if place.exists() and not os.access(place, os.W_OK):
                remedy = "Name another file: --db sqlite:///FILE."
                raise Absent(f"{place} cannot be written", remedy)
        if not file.exists():
            return f"{masked(db)}: made by the first `autosync tune` or `autosync serve`"
    database = connect(db)
    try:
        with database.engine.connect() as connection:
            revision = current_revision(connection)
    finally:
        database.close()
    if revision is not None:
        require_schema(db)  # as all commands but `serve` and `db upgrade` do
    return f"{masked(db)}, schema revision {revision or 'none yet'}"


def _postgresql() -> str:
    if find_spec("psycopg") is None:
        remedy = "For workers on several machines: `pip install 'autosync[postgresql]'`."
        raise Absent("psycopg, its driver, is not installed", remedy)
    return "psycopg is installed"


def _ray() -> str:
    if find_spec("ray") is None:
        remedy = "For the launcher ray alone: `pip install 'autosync[ray]'`."
        raise Absent("it is not installed", remedy)
    from importlib.metadata import version

    words = f"{version('ray')} is installed"
    if os.environ.get("RAY_AUTH_MODE") != "token":
        remedy = "The launcher ray asks for RAY_AUTH_MODE=token; see docs/launchers.md."
        raise Absent(f"{words}; RAY_AUTH_MODE is not token", remedy)
    address = os.environ.get(RAY_ADDRESS_VARIABLE)
    return (
        f"{words}; its head is {address}" if address else f"{words}; name its head: --ray-address"
    )


def _browser() -> str:
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    remedy = "The dashboard can be looked at from another machine; its tests need chromium."
    raise Absent("none is installed here", remedy)


COLOURS = {"works": "green", "absent": "yellow", "broken": "red"}
BROKEN = 1
"""Exit code where something that is there does not work."""


def doctor(db: DatabaseUrl = DEFAULT_DATABASE, json: Json = False) -> None:
    """Try what AutoSync uses on this machine, and say how to get or mend what does not work.

    torch, gloo, NCCL, namespaces with shaped links, the lock of measurements, the cache of compiled
    kernels, the database, Ray, a browser. Exit code 1 where something is broken; what is absent
    breaks nothing.

    Examples:

        autosync doctor
        autosync doctor --db postgresql://tuner@db.internal/autosync --json
    """
    from dataclasses import asdict

    found = check_machine(db)
    if json:
        print_json([asdict(each) for each in found])
    else:
        print_table(
            ("", "", "found"),
            [
                (each.name, f"[{COLOURS[each.verdict]}]{each.verdict}[/]", escape(each.found))
                for each in found
            ],
        )
        for each in found:
            if each.remedy:
                out.print(f"[bold]{each.name}[/]: {escape(each.remedy)}")
    if any(each.verdict == "broken" for each in found):
        raise typer.Exit(BROKEN)
