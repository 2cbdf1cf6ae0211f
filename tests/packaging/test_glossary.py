"""The dashboard's glossary is the documentation's."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_dashboards_glossary_is_that_of_the_documentation() -> None:
    spec = importlib.util.spec_from_file_location("glossary", ROOT / "scripts" / "glossary.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "glossary.md").read_text()
    sections = script.glossary(page)
    assert json.loads(script.WRITTEN.read_text()) == sections, "run scripts/glossary.py"
    assert sum(len(section["terms"]) for section in sections) == page.count('<a id="')
