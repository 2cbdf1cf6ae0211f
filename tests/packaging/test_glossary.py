"""The dashboard's glossary is the documentation's."""

import json

from scripts import glossary


def test_the_dashboards_glossary_is_that_of_the_documentation() -> None:
    page = glossary.PAGE.read_text()
    sections = glossary.glossary(page)
    assert json.loads(glossary.WRITTEN.read_text()) == sections, "run scripts/glossary.py"
    assert sum(len(section["terms"]) for section in sections) == page.count('<a id="')
