"""The documentation builds as a site without a warning, so no link or anchor leads nowhere."""

import re
from pathlib import Path

import pytest

from scripts import build_docs

ROOT = Path(__file__).resolve().parents[2]


OF_SITE = pytest.mark.long
"""`test_documentation` looks at the links between files in every run."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="no mkdocs-material: pip install 'autosync[docs]'")
    folder = tmp_path_factory.mktemp("site")
    assert build_docs.build(folder) == 0, "mkdocs names the page above"
    return folder


@OF_SITE
def test_every_page_is_on_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT).with_suffix("")
        place = place.parent if place.name == "README" else place
        assert (site / place / "index.html").is_file(), page


@OF_SITE
def test_references_are_made_from_the_code(site: Path) -> None:
    reference = site / "docs" / "reference"
    python = (reference / "python" / "index.html").read_text()
    assert "Train as the bundle says" in python
    commands = (reference / "cli" / "index.html").read_text()
    assert "autosync dataset describe" in commands
    assert "--step-seconds" in commands
    rest = (reference / "rest" / "index.html").read_text()
    assert "POST /v1/tunings" in rest


@OF_SITE
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = re.findall(
        r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"',
        (site / "index.html").read_text(),
    )
    assert loaded == []


def test_links_of_folders_lead_to_their_page_or_are_words(tmp_path: Path) -> None:
    linked: set[Path] = set()
    (tmp_path / "held").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "held" / "README.md").write_text("# Held\n")
    (tmp_path / "script.py").write_text("")
    page = tmp_path / "page.md"
    page.write_text("[a](held) [b](bare) [c](script.py) `[d](bare)` [e](https://example.org)\n")
    staged = build_docs.staged(page, linked)
    assert staged == "[a](held/README.md) b [c](script.py) `[d](bare)` [e](https://example.org)\n"
    assert linked == {tmp_path / "script.py"}
