"""Machine code is kept between processes, and made anew when anything it is made of changes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import autosync
from autosync.simulator.numba_cache import Kernel

ROOT = Path(autosync.__file__).parents[1]

KERNEL = """
import numpy as np
from autosync.simulator.numba_cache import cached_kernel
from small.constants import FACTOR, OFFSETS, PAIR
from small.inner import shifted

@cached_kernel(allocates=False)
def total(values):
    found = 0.0
    for value in values:
        found += FACTOR * shifted(value)
    return found + OFFSETS[0] + PAIR[1]

if __name__ == "__main__":
    print(total(np.array([1.0, 2.0])))
"""
SHIFTED = """
from numba import njit
from small.deeper import limited

@njit
def shifted(value):
    return limited(value) + 1.0
"""
LIMITED = """
from small.constants import LIMIT

def limited(value):
    return min(value, LIMIT)
"""
CONSTANTS = """
import numpy as np

FACTOR, LIMIT = 2.0, 9.0
OFFSETS = np.array([0.5])
PAIR = (0, 0.25)
"""


def run(folder: Path, *command: str, cache: Path | None = None) -> str:
    """What a new process prints that finds packages in the folder first. cache: the user's."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    environment.pop("NUMBA_CACHE_DIR", None)
    if cache is not None:
        environment |= {"XDG_CACHE_HOME": str(cache), "PYTHONWARNINGS": "always"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() if cache is None else f"{done.stdout} {done.stderr}".strip()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A package of a kernel, two functions that it reaches, and the constants that they read."""
    package = tmp_path / "small"
    package.mkdir()
    texts = {"kernel": KERNEL, "inner": SHIFTED, "deeper": LIMITED, "constants": CONSTANTS}
    for name, text in {"__init__": "", **texts}.items():
        (package / f"{name}.py").write_text(text)
    return package


def total_of(small: Path) -> float:
    return float(run(small.parent, "-m", "small.kernel"))


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


def test_a_second_process_compiles_nothing(small: Path) -> None:
    assert total_of(small) == 10.75
    first = compiled_files(small)
    assert len(first) == 1
    assert total_of(small) == 10.75
    assert compiled_files(small) == first


def test_where_the_packages_folder_cannot_be_written_to_the_users_cache_serves(
    small: Path, tmp_path: Path
) -> None:
    (small / "__pycache__").write_text("no folder: nobody, root included, can write to it")
    cache = tmp_path / "cache"
    assert run(tmp_path, "-m", "small.kernel", cache=cache) == "10.75"
    kept = compiled_files(cache)
    assert len(kept) == 1
    written = {path: path.stat().st_mtime_ns for path in kept}
    assert run(tmp_path, "-m", "small.kernel", cache=cache) == "10.75"
    assert {path: path.stat().st_mtime_ns for path in compiled_files(cache)} == written


def test_where_no_folder_can_be_written_to_it_compiles_and_says_so(
    small: Path, tmp_path: Path
) -> None:
    (small / "__pycache__").write_text("no folder")
    (tmp_path / "cache").write_text("no folder either")
    said = run(tmp_path, "-m", "small.kernel", cache=tmp_path / "cache")
    assert said.startswith("10.75")
    assert "every process compiles them again" in said
    assert "NUMBA_CACHE_DIR" in said


@pytest.mark.parametrize(
    ("module", "old", "new", "expected"),
    [
        ("kernel", "found = 0.0", "found = 1.0", 11.75),
        ("inner", "+ 1.0", "+ 2.0", 14.75),
        ("deeper", "min(value", "max(value", 40.75),
        ("constants", "FACTOR, LIMIT = 2.0, 9.0", "FACTOR, LIMIT = 3.0, 9.0", 15.75),
        ("constants", "FACTOR, LIMIT = 2.0, 9.0", "FACTOR, LIMIT = 2.0, 1.0", 8.75),
        ("constants", "[0.5]", "[0.75]", 11.0),
        ("constants", "(0, 0.25)", "(0, 0.5)", 11.0),
    ],
)
def test_an_edit_anywhere_is_seen(
    small: Path, module: str, old: str, new: str, expected: float
) -> None:
    assert total_of(small) == 10.75
    change(small / f"{module}.py", old, new)
    assert total_of(small) == expected


SAMPLE = """
import numpy as np
from autosync.search.sampler.draw_kernels import draw_choices
from autosync.search.sampler.drawn_columns import empty_choices
from autosync.search.sampler.sampling_tables import sampler_inputs
from autosync.search.space import Space
from tests.domains import chain_graph, domain_of

domain = domain_of(chain_graph(((64, 32), (300, 7), (33,))))
tables, _, _ = sampler_inputs(domain, Space())
choices = empty_choices(50, 3)
draw_choices(tables, np.uint64(1), np.arange(50, dtype=np.uint64), choices)
print([column.tolist() for column in (choices.order, choices.parts, choices.synchronizer)])
"""


def test_an_edit_of_the_samplers_random_numbers_is_seen(tmp_path: Path) -> None:
    for name in ("autosync", "search", "simulator"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    before = run(tmp_path, "-c", SAMPLE)
    change(
        tmp_path / "search/sampler/counter_random.py", "0x9E3779B97F4A7C15", "0x9E3779B97F4A7C17"
    )
    assert run(tmp_path, "-c", SAMPLE) != before


def test_what_cannot_be_compared_is_refused() -> None:
    known = {"one": 1}

    def kernel(value: float) -> float:
        return value * known["one"]

    with pytest.raises(TypeError, match="reads known, a dict"):
        Kernel(kernel)(1.0)


LINEAR_ALGEBRA = """
import sys
import numpy as np
from numba import njit
from small.kernel import total

total(np.arange(3.0))
assert "scipy.linalg" not in sys.modules
product = njit(lambda left, right: np.dot(left, right))
print(product(np.eye(2), np.ones((2, 2))).sum(), "scipy.linalg" in sys.modules)
"""


def test_a_kernel_loads_without_scipy_and_linear_algebra_is_there_when_it_is_asked_for(
    small: Path,
) -> None:
    assert run(small.parent, "-c", LINEAR_ALGEBRA) == "4.0 True"
