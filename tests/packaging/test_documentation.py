"""Pages and pictures name files and modules that exist, whatever is renamed; `test_claims` has the
commands."""

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


def found(pattern: re.Pattern[str]) -> list[tuple[Path, str]]:
    """What it finds in pages, each beside its page."""
    return [(page, text) for page in pages() for text in pattern.findall(page.read_text())]


def test_links_lead_to_files() -> None:
    links = [(page, link) for page, link in found(LINK) if "://" not in link]
    assert links
    assert [each for each in links if not (each[0].parent / each[1]).exists()] == []


def test_source_files_that_pages_name_exist() -> None:
    sources = [f"/{source.relative_to(ROOT)}" for source in files("*.py")]
    known = {name for _, name in found(SOURCE_FILE) if any(s.endswith(f"/{name}") for s in sources)}
    assert known
    assert [each for each in found(SOURCE_FILE) if each[1] not in known] == []


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
        for page, block in found(PYTHON_BLOCK)
        for line in IMPORT.findall(block)
        for statement in ast.parse(line).body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for name in statement.names
    }
    assert len(imported) > 10
    assert [each for each in imported if not hasattr(import_module(each[1]), each[2])] == []
