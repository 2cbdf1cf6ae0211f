"""Machine code is kept between processes, and made anew when anything it is made of changes."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import autosync
from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import estimate_profile
from autosync.search.designs.known_designs import ddp
from autosync.simulator.explanation import explain
from autosync.simulator.numba_cache import PACKAGE, SOURCES
from autosync.simulator.numba_compiler import PLAIN_PYTHON
from autosync.simulator.timeline.event_loop import play

ROOT = Path(autosync.__file__).parents[1]

KERNEL = """
import numpy as np
from autosync.simulator.numba_cache import cached_kernel
from autosync.search.sampler.small_inner import FACTOR, OFFSETS, shifted

@cached_kernel(allocates=False)
def total(values):
    found = 0.0
    for value in values:
        found += FACTOR * shifted(value)
    return found + OFFSETS[0]

if __name__ == "__main__":
    print(total(np.array([1.0, 2.0])))
"""
INNER = """
import numpy as np
from numba import njit

FACTOR = 2.0
OFFSETS = np.array([0.75])

@njit
def shifted(value):
    return value + 1.0
"""
RUN = ("-m", "autosync.simulator.timeline.small_kernel")


def run(folder: Path, cache: Path | None = None) -> str:
    """What a new process prints that computes the small kernel. cache: the user's."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("NUMBA_CACHE_DIR", None)
    if cache is not None:
        environment |= {"XDG_CACHE_HOME": str(cache), "PYTHONWARNINGS": "always"}
    done = subprocess.run(
        [sys.executable, *RUN], env=environment, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() if cache is None else f"{done.stdout} {done.stderr}".strip()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A copy of the sources with a small kernel, and a function and constants that it reads."""
    for name in ("autosync", "search", "simulator"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    (tmp_path / "simulator/timeline/small_kernel.py").write_text(KERNEL)
    (tmp_path / "search/sampler/small_inner.py").write_text(INNER)
    return tmp_path


def compiled_files(folder: Path) -> set[Path]:
    return set(folder.rglob("*.nbc"))


def change(path: Path, old: str, new: str) -> None:
    """Edit the file, its time whole seconds later: Python knows its own bytecode to be stale by
    the second and the size alone, and an edit may follow within a second of the first run.
    """
    text = path.read_text()
    assert old in text
    later = path.stat().st_mtime + 2.0
    path.write_text(text.replace(old, new))
    os.utime(path, (later, later))


def test_a_second_process_compiles_nothing_until_a_source_is_edited(small: Path) -> None:
    assert run(small) == "10.75"
    first = compiled_files(small)
    assert len(first) == 1
    assert run(small) == "10.75"
    assert compiled_files(small) == first
    # Of a function that the kernel calls. Any source counts by its bytes, so what else a kernel
    # reads needs no edit of its own, and numba itself would see one of the kernel.
    change(small / "search/sampler/small_inner.py", "+ 1.0", "+ 2.0")
    assert run(small) == "14.75"


def test_an_unwritable_package_folder_falls_back_to_the_users_cache(
    small: Path, tmp_path: Path
) -> None:
    nowhere = small / "simulator/timeline/__pycache__"
    nowhere.write_text("no folder: nobody, root included, can write to it")
    cache = tmp_path / "cache"
    assert run(small, cache) == "10.75"
    kept = compiled_files(cache)
    assert len(kept) == 1
    written = {path: path.stat().st_mtime_ns for path in kept}
    assert run(small, cache) == "10.75"
    assert {path: path.stat().st_mtime_ns for path in compiled_files(cache)} == written


def test_without_a_writable_folder_kernels_compile_with_a_warning(
    small: Path, tmp_path: Path
) -> None:
    (small / "simulator/timeline/__pycache__").write_text("no folder")
    (tmp_path / "cache").write_text("no folder either")
    said = run(small, tmp_path / "cache")
    assert said.startswith("10.75")
    assert "every process compiles them again" in said
    assert "NUMBA_CACHE_DIR" in said


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "autosync" else ("autosync", *parts))


def kernel_files() -> list[Path]:
    """Files of autosync, the simulator and the search with functions that numba compiles."""
    paths = [path for package in ("simulator", "search") for path in (ROOT / package).rglob("*.py")]
    marked = [p for p in paths if "@njit" in p.read_text() or "@cached_kernel" in p.read_text()]
    return [*marked, *(Path(str(module.__file__)) for module in PLAIN_PYTHON)]


def compiles(decorator: ast.expr) -> bool:
    return "njit" in ast.unparse(decorator) or "cached_kernel" in ast.unparse(decorator)


def read_from_elsewhere(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of everything of ours that functions of a file read, as they import it."""
    tree = ast.parse(path.read_text())
    imported = {
        name.asname or name.name: node.module or ""
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autosync.")
        for name in node.names
    }
    compiled = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and (path.parent.name == "plan" or any(map(compiles, node.decorator_list)))
    ]
    for function in compiled:
        for node in (each for statement in function.body for each in ast.walk(statement)):
            if isinstance(node, ast.Name) and node.id in imported:
                yield imported[node.id], node.id


def test_kernels_read_from_hashed_sources_alone() -> None:
    hashed = {
        module_name(path)
        for source in (PACKAGE / each for each in SOURCES)
        for path in ([source] if source.suffix else source.rglob("*.py"))
    }
    found = [
        (module, name) for path in kernel_files() for module, name in read_from_elsewhere(path)
    ]
    assert len(found) > 50
    assert [pair for pair in found if pair[0] not in hashed] == []


def test_clusters_of_either_backend_run_the_same_machine_code() -> None:
    graph = bundled("vgg16")
    for name in ("example-2x2", "aws-p3-16xlarge-x4"):
        cluster = load_cluster(name)
        profile = estimate_profile(graph, cluster.fastest_device_type)
        domain = Domain(graph, cluster, profile)
        explain(domain, ddp(domain))
    assert play._compiled is not None
    assert len(play._compiled.signatures) == 1  # type: ignore[attr-defined]  # of numba
