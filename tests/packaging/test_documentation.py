"""Pages and pictures name files, modules and commands that exist, whatever is renamed."""

import ast
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SOURCE_FILE = re.compile(r"`([\w/.]+\.py)`")
PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
IMPORT = re.compile(r"^ *(from autosync[\w.]* import [\w, ]+)$", re.MULTILINE)
BENCHMARK = re.compile(r"python -m (benchmarks(?:\.\w+)+)")
PICTURE_OF_RUNTIME = ROOT / "docs" / "pictures" / "way_of_a_gradient.svg"


def files(pattern: str) -> list[Path]:
    held = subprocess.run(
        ["git", "ls-files", "-z", pattern], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if held.returncode:
        pytest.skip("not a clone, so which files are the project's is not known")
    return [ROOT / name for name in held.stdout.split("\0") if name]


def pages() -> list[Path]:
    return [page for page in files("*.md") if "vendor" not in page.parts]


def test_links_lead_to_files() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages()
        for link in LINK.findall(page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []


def test_source_files_that_pages_name_exist() -> None:
    sources = [f"/{source.relative_to(ROOT)}" for source in files("*.py")]
    unknown = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages()
        for name in SOURCE_FILE.findall(page.read_text())
        if not any(source.endswith(f"/{name}") for source in sources)
    ]
    assert unknown == []


def test_benchmarks_that_pages_name_exist() -> None:
    named = {name for page in pages() for name in BENCHMARK.findall(page.read_text())}
    assert named
    assert [name for name in named if not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []


def test_the_picture_of_the_runtime_names_its_files() -> None:
    boxes = re.findall(r'class="file"[^>]*>([^<]+)<', PICTURE_OF_RUNTIME.read_text())
    named = []
    for box in boxes:
        first, *others = box.split(", ")
        named += [first, *(f"{first.rsplit('/', 1)[0]}/{other}" for other in others)]
    assert len(named) > 10
    runtime = ROOT / "autosync" / "runtime"
    assert [name for name in named if not (runtime / name).is_file()] == []


def test_names_that_pages_import_exist() -> None:
    imported = {
        (str(page.relative_to(ROOT)), statement.module, name.name)
        for page in pages()
        for block in PYTHON_BLOCK.findall(page.read_text())
        for line in IMPORT.findall(block)
        for statement in ast.parse(line).body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for name in statement.names
    }
    assert len(imported) > 10
    unknown = [
        f"{page}: {module}.{name}"
        for page, module, name in sorted(imported)
        if not hasattr(import_module(module), name)
    ]
    assert unknown == []
