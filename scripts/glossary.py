"""Write docs/glossary.md as the JSON that the dashboard's glossary reads.

.venv/bin/python scripts/glossary.py
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, WRITTEN = ROOT / "docs" / "glossary.md", ROOT / "api" / "views" / "glossary.json"
ROW = re.compile(r'\| <a id="([\w-]+)"></a>(.+?) \| (.+) \|')


def glossary(page: str) -> list[dict[str, Any]]:
    """Sections with their terms, in the order of the page. Emphasis is left out."""
    sections: list[dict[str, Any]] = []
    for line in page.splitlines():
        if line.startswith("## "):
            sections.append({"title": line.removeprefix("## "), "terms": []})
        elif row := ROW.fullmatch(line):
            key, words, meaning = row.groups()
            sections[-1]["terms"].append(
                {"key": key, "words": words, "meaning": meaning.replace("*", "")}
            )
    return sections


def main() -> None:
    written = json.dumps(glossary(PAGE.read_text()), indent=1, ensure_ascii=False) + "\n"
    WRITTEN.write_text(written)


if __name__ == "__main__":
    main()
