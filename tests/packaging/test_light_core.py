"""What works with the core alone, and with each extra: modules of the others are hidden."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest

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
"""


def test_a_training_process_and_the_client_need_the_core_alone(tmp_path: Path) -> None:
    done = run_without((*OF_TUNE, *OF_SERVICE), TRAIN, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Client"


@pytest.mark.parametrize("name", ["tune", "diagnose"])
def test_the_search_is_asked_for_by_its_extra(name: str, tmp_path: Path) -> None:
    code = f"""
import autosync
try:
    autosync.{name}
except autosync.errors.NotSupported as error:
    print(error)
"""
    done = run_without((*OF_TUNE, *OF_SERVICE), code, tmp_path)
    assert "pip install 'autosync[tune]'" in done.stdout, done.stderr


RUN = """
import sys
sys.argv = ["autosync", *{words!r}]
from autosync.__main__ import run
run()
"""


@pytest.mark.parametrize(
    ("hidden", "words", "says"),
    [
        ((*OF_TUNE, *OF_SERVICE), ("--help",), "pip install 'autosync[tune]'"),
        (OF_SERVICE, ("rank", "resnet50", "example-4x1"), "pip install 'autosync[service]'"),
        (OF_SERVICE, ("serve",), "pip install 'autosync[service]'"),
    ],
)
def test_a_command_without_its_extra_says_so_in_a_line(
    hidden: tuple[str, ...], words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    done = run_without(hidden, RUN.format(words=words), tmp_path)
    assert done.returncode in (1, 2)
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("hidden", "package"), [("llvmlite", "numba"), ("mako", "alembic")])
def test_what_a_dependency_lacks_is_named_and_is_no_defect(
    hidden: str, package: str, tmp_path: Path
) -> None:
    words = ("rank", "resnet50", "example-4x1")
    done = run_without((hidden,), RUN.format(words=words), tmp_path)
    shown = " ".join(done.stderr.split())
    assert done.returncode == 2, shown
    assert f"{package} needs the module {hidden}, which is not installed here." in shown
    assert f"pip install {package}" in shown
    assert "Traceback" not in shown
    assert "defect" not in shown


def test_an_installed_package_that_does_not_fit_is_named_with_its_version() -> None:
    with pytest.raises(ImportError) as caught:
        exec("from rich import nothing_of_this_name")
    refusal = failed_import(caught.value)
    assert refusal is not None
    assert f"rich {version('rich')} does not fit" in refusal.message
    assert "nothing_of_this_name" in refusal.message
    assert "pip install --upgrade rich" in refusal.remedy


@pytest.mark.parametrize("statement", ["import autosync.none", "from autosync import none"])
def test_what_autosync_lacks_of_itself_is_a_defect(statement: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert failed_import(caught.value) is None


def test_an_import_of_autosyncs_that_no_extra_brings_is_a_defect() -> None:
    with pytest.raises(ImportError) as caught:
        exec("import not_a_package", {"__name__": "autosync.somewhere"})
    assert failed_import(caught.value) is None


@pytest.mark.parametrize(
    "words", [("--help",), ("clusters", "example-4x1"), ("verify", "--help"), ("models",)]
)
def test_commands_that_need_no_service_run_without_it(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    done = run_without(OF_SERVICE, RUN.format(words=words), tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_module_has_one_extra() -> None:
    assert len(EXTRA_OF) == len(OF_TUNE) + len(OF_SERVICE)
