"""What is installed: one package, whole, that hides nobody's modules."""

import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.builds import (
    LINKED,
    build,
    copy_tree,
    install,
    packaged_files,
    run_command,
    run_installed,
)

USERS_OWN = {
    **{f"{name}.py": f"MINE = {name!r}" for name in ("search", "api", "simulator")},
    **{f"{name}/__init__.py": f"MINE = {name!r}" for name in ("datasets", "migrations")},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packaging")


@pytest.fixture(scope="module")
def tree(folder: Path) -> Path:
    return copy_tree(folder / "tree")


@pytest.fixture(scope="module")
def wheel(tree: Path, folder: Path) -> Path:
    return build(tree, "wheel", folder / "from_tree")


@pytest.fixture(scope="module")
def elsewhere(folder: Path) -> Path:
    """A folder with a user's own modules, named as the project's folders are."""
    for name, text in USERS_OWN.items():
        file = folder / "elsewhere" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "elsewhere"


@pytest.fixture(scope="module")
def installed(wheel: Path, folder: Path) -> Path:
    return install(wheel, folder / "installed")


def contents(wheel: Path) -> dict[str, int]:
    """Checksum by name."""
    with zipfile.ZipFile(wheel) as opened:
        return {entry.filename: entry.CRC for entry in opened.infolist()}


def test_the_wheel_holds_autosync_alone_and_every_file_of_it(wheel: Path, tree: Path) -> None:
    names = contents(wheel).keys()
    top = {name.split("/")[0] for name in names}
    assert top == {"autosync", "-".join(wheel.name.split("-")[:2]) + ".dist-info"}
    assert {name for name in names if name.startswith("autosync/")} == packaged_files(tree)
    assert "autosync/py.typed" in names


def test_the_image_copies_all_that_links_lead_to(tree: Path) -> None:
    assert LINKED
    assert [name for name in LINKED if not (tree / "autosync" / name).is_dir()] == []


@pytest.mark.long
def test_the_sdist_makes_the_same_wheel(wheel: Path, tree: Path, folder: Path) -> None:
    sdist = build(tree, "sdist", folder / "sdist")
    with tarfile.open(sdist) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    again = contents(build(unpacked, "wheel", folder / "from_sdist"))
    assert again.keys() == contents(wheel).keys()
    changed = {name for name, checksum in contents(wheel).items() if again[name] != checksum}
    assert not changed


def test_the_installed_package_works_beside_a_users_own_modules(
    installed: Path, elsewhere: Path
) -> None:
    code = f"""
import sqlite3
import search, api, simulator, datasets, migrations
for module in (search, api, simulator, datasets, migrations):
    assert module.MINE == module.__name__
import autosync
assert autosync.__file__.startswith({str(installed)!r}), autosync.__file__
import autosync.api, autosync.extensions.dynamic, autosync.search, autosync.simulator
from alembic.script import ScriptDirectory
from autosync.api.db.schema_migration import alembic_config, migrate
from autosync.cluster.cluster_file import bundled_clusters, load_cluster
from autosync.models import BUNDLED, bundled
assert load_cluster(bundled_clusters()[0]).world_size > 1
assert all(bundled(name).name == name for name in BUNDLED)
migrate("sqlite:///installed.db")
rows = sqlite3.connect("installed.db").execute("select version_num from alembic_version")
head = ScriptDirectory.from_config(alembic_config()).get_current_head()
assert [row[0] for row in rows] == [head]
assert autosync.tune.__module__.startswith("autosync.search.")
from autosync.simulator.numba_cache import sources_hash
assert sources_hash()  # it reads files of the package
from autosync.api.cli.main import app
from typer.testing import CliRunner
told = CliRunner().invoke(app, ["doctor"]).output
assert "kernel cache  works   " + {str(installed)!r} in told, told
print("works")
"""
    assert run_installed(installed, code, elsewhere) == "works\n"


@pytest.mark.long
def test_every_installed_module_can_be_imported(installed: Path, folder: Path) -> None:
    code = """
import importlib, pkgutil, sys
sys.modules["torchvision"] = None  # transformers imports it where it is, beside whichever torch
import autosync
names = [each.name for each in pkgutil.walk_packages(autosync.__path__, "autosync.")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""
    assert int(run_installed(installed, code, folder)) > 300


@pytest.mark.long
def test_the_installed_command_ranks(installed: Path, folder: Path) -> None:
    """It compiles the kernels anew, beside the installed files."""
    words = ["rank", "resnet50", "example-4x1", "--proposals", "100", "--json"]
    assert json.loads(run_command(installed, words, folder))
    assert any(installed.rglob("*.nbc"))


@pytest.mark.long
def test_a_trainer_trains_beside_it_with_the_real_datasets(installed: Path, folder: Path) -> None:
    """A user's script with a search.py of their own, in one process."""
    place = folder / "script"
    place.mkdir()
    (place / "search.py").write_text(USERS_OWN["search.py"])
    code = f"""
import sys
sys.modules["torchvision"] = None  # transformers imports it where it is, beside whichever torch
import search, transformers, datasets
assert search.MINE == "search"
assert not datasets.__file__.startswith({str(installed)!r}), datasets.__file__
import autosync
assert autosync.__file__.startswith({str(installed)!r}), autosync.__file__
assert autosync.tune.__module__.startswith("autosync.search.")
from autosync.frameworks.transformers import use_bundle
config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16, n_positions=8)
tokens = [[1, 2, 3, 4]] * 4
trainer = transformers.Trainer(
    transformers.GPT2LMHeadModel(config),
    transformers.TrainingArguments(
        "out", use_cpu=True, max_steps=1, report_to=[], save_strategy="no", disable_tqdm=True
    ),
    train_dataset=datasets.Dataset.from_dict({{"input_ids": tokens, "labels": tokens}}),
)
use_bundle(trainer, "for-more-than-one-process.json")
print("steps", trainer.train().global_step)
"""
    assert run_installed(installed, code, place).splitlines()[-1] == "steps 1"


@pytest.mark.long
def test_an_editable_install_exposes_autosync_alone(
    tree: Path, folder: Path, elsewhere: Path
) -> None:
    target = install(build(tree, "editable", folder / "editable"), folder / "linked")
    code = f"""
import sys
from importlib.util import find_spec
sys.path.remove("")
def origin(name):
    spec = find_spec(name)
    return [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
for name in {(*LINKED, "tests", "benchmarks")!r}:
    assert not any(str(place).startswith({str(tree)!r}) for place in origin(name)), name
import autosync, autosync.search, autosync.simulator, autosync.api
assert autosync.__file__.startswith({str(tree)!r}), autosync.__file__
from autosync.models import bundled
print(bundled("resnet50").name)
"""
    assert run_installed(target, code, elsewhere) == "resnet50\n"
