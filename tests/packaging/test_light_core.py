"""What works with the core alone, and with each extra: modules of the others are hidden."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest

from autosync.api.cli.error_reporting import BROKEN
from autosync.extras import EXTRA_OF, OF_SERVICE, OF_TUNE, failed_import

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

HIDE = """
import sys
sys.modules.update(dict.fromkeys({hidden!r}))  # what is None there cannot be imported
"""
OF_CORE = ("jinja2", "markupsafe", "h11", "anyio")
"""Of the service's modules, those that torch or httpx brings."""


def run_without(
    hidden: tuple[str, ...], code: str, folder: Path
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=sorted({*hidden} - {*OF_CORE})) + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def distributions(requirements: list[str]) -> set[str]:
    names = (text.partition(">")[0].partition("[")[0].strip() for text in requirements)
    return {name.lower().replace("_", "-") for name in names} - {"autosync"}


@pytest.mark.parametrize(("extra", "modules"), [("tune", OF_TUNE), ("service", OF_SERVICE)])
def test_the_table_of_extras_is_that_of_the_project(extra: str, modules: tuple[str, ...]) -> None:
    of_module = packages_distributions()
    found = {of_module[module][0].lower().replace("_", "-") for module in modules}
    assert found == distributions(PROJECT["optional-dependencies"][extra])


TRAIN = """
import os
import torch, torch.distributed as dist
import autosync
from autosync.bundle import load_bundle
store = "file://" + os.path.abspath("store")
dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    autosync.distribute(model, optimizer, "none.json")
except autosync.errors.InvalidInput as error:
    print("refused:", error.thing)
import autosync.frameworks, autosync.exports, autosync.runtime.distributed
import autosync.trials.worker.worker_main
import autosync.diagnosis.report
print(autosync.Client.__name__)
dist.destroy_process_group()
for name in ("tune", "diagnose"):
    try:
        getattr(autosync, name)
    except autosync.errors.NotSupported as error:
        print(name, error)
from autosync.__main__ import run
run()
"""


def test_the_core_alone_trains_is_a_client_and_asks_for_the_extra_of_the_rest(
    tmp_path: Path,
) -> None:
    done = run_without((*OF_TUNE, *OF_SERVICE), TRAIN, tmp_path)
    assert done.returncode == 1
    refused, client, *asked = done.stdout.splitlines()
    assert (refused[:8], client) == ("refused:", "Client"), done.stderr
    assert [line.split()[0] for line in asked] == ["tune", "diagnose"]
    for told in (*asked, " ".join(done.stderr.split())):  # the last is that of the command line
        assert "pip install 'autosync[tune]'" in told
    assert "Traceback" not in done.stderr


RUN = """
import contextlib, io, json, sys
from autosync.__main__ import run
told = []
for words in {commands!r}:
    sys.argv = ["autosync", *words]
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(errors):
        try:
            run()
        except SystemExit as done:
            told.append((done.code, " ".join(errors.getvalue().split())))
print(json.dumps(told))
"""


def told_without(
    hidden: tuple[str, ...], commands: list[tuple[str, ...]], folder: Path
) -> list[tuple[int, str]]:
    """Exit code and text of each command, run one after the other in one process."""
    done = run_without(hidden, RUN.format(commands=commands), folder)
    assert done.returncode == 0, done.stderr
    return [(code, text) for code, text in json.loads(done.stdout)]


def test_commands_that_need_no_service_run_without_it_and_others_say_so(tmp_path: Path) -> None:
    free = [("--help",), ("clusters", "example-4x1"), ("verify", "--help"), ("models",)]
    needing = [("rank", "resnet50", "example-4x1"), ("serve",)]
    told = told_without(OF_SERVICE, [*free, *needing], tmp_path)
    assert [code for code, _ in told[: len(free)]] == [0] * len(free), told
    for code, text in told[len(free) :]:
        assert code == 2
        assert "pip install 'autosync[service]'" in text
        assert "Traceback" not in text


def test_doctor_calls_what_an_extra_would_bring_absent_and_names_the_extra(tmp_path: Path) -> None:
    ((_, text),) = told_without(OF_SERVICE, [("doctor",)], tmp_path)
    assert "database absent this needs sqlalchemy, which is not installed here." in text
    assert "database: pip install 'autosync[service]'" in text
    assert "kernel cache works" in text


def test_a_client_of_a_service_needs_none_to_tune(tmp_path: Path) -> None:
    words = ("tune", "resnet50", "example-4x1", "--url", "http://127.0.0.1:1")
    ((code, text),) = told_without(OF_SERVICE, [words], tmp_path)
    assert code == 2
    assert "http://127.0.0.1:1" in text
    assert "pip install" not in text


def test_what_a_dependency_lacks_is_named_and_is_no_defect(tmp_path: Path) -> None:
    ((code, text),) = told_without(("llvmlite",), [("rank", "resnet50", "example-4x1")], tmp_path)
    assert code == 2, text
    assert "numba needs the module llvmlite, which is not installed here." in text
    assert "pip install numba" in text
    assert "Traceback" not in text
    assert "defect" not in text


DEFECT = """
import os, sys
from autosync.api.cli.error_reporting import guarded
os.environ["XDG_STATE_HOME"] = os.getcwd()
sys.argv = ["autosync", "tune", "--url", "http://me:s3cret@tuner"]
sys.exit(guarded(lambda: 1 // 0))
"""


def test_a_defect_is_logged_without_the_service(tmp_path: Path) -> None:
    """Whose library masks the passwords of addresses: without it none of an address is written."""
    done = run_without(OF_SERVICE, DEFECT, tmp_path)
    assert done.returncode == BROKEN, done.stderr
    assert "Unexpected ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr
    (log,) = (tmp_path / "autosync").iterdir()
    assert "autosync tune --url ***" in log.read_text()
    assert "s3cret" not in log.read_text()


def test_an_installed_package_that_does_not_fit_is_named_with_its_version() -> None:
    with pytest.raises(ImportError) as caught:
        exec("from rich import nothing_of_this_name")
    refusal = failed_import(caught.value)
    assert refusal is not None
    assert f"rich {version('rich')} does not fit" in refusal.message
    assert "nothing_of_this_name" in refusal.message
    assert "pip install --upgrade rich" in refusal.remedy


@pytest.mark.parametrize("name", [None, "_dynfunc"])
def test_a_package_that_does_not_run_here_is_named_with_the_reason(name: str | None) -> None:
    """numba refuses a newer NumPy without a module's name; the loader of shared libraries names the
    last part of the name of the module that needs one."""
    with pytest.raises(ImportError) as caught:
        exec(
            f"raise ImportError('Numba needs NumPy 2.5 or less.', name={name!r})",
            {"__name__": "numba"},
        )
    refusal = failed_import(caught.value)
    assert refusal is not None
    told = f"numba {version('numba')} does not run here: Numba needs NumPy 2.5 or less."
    assert refusal.message == told
    assert "pip check" in refusal.remedy


@pytest.mark.parametrize(
    ("statement", "module"),
    [
        ("import autosync.none", "__main__"),
        ("from autosync import none", "__main__"),
        ("import not_a_package", "autosync.somewhere"),  # an import of autosync's
        ("raise ImportError('no name')", "autosync.somewhere"),
        ("raise ImportError('no name')", "a_script_of_a_user"),
    ],
)
def test_what_autosync_lacks_of_itself_or_no_extra_brings_is_a_defect(
    statement: str, module: str
) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement, {"__name__": module})
    assert failed_import(caught.value) is None


def test_every_module_has_one_extra() -> None:
    assert len(EXTRA_OF) == len(OF_TUNE) + len(OF_SERVICE)
