"""The glossary of the documentation, for the dashboard: `scripts/glossary.py` writes its file."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("glossary.json")


@dataclass(frozen=True, slots=True)
class Term:
    """key: of its place on the page. words: one or several names of it."""

    key: str
    words: str
    meaning: str


@dataclass(frozen=True, slots=True)
class GlossarySection:
    title: str
    terms: tuple[Term, ...]


@cache
def glossary() -> tuple[GlossarySection, ...]:
    return tuple(
        GlossarySection(section["title"], tuple(Term(**term) for term in section["terms"]))
        for section in json.loads(FILE.read_text(encoding="utf-8"))
    )


@cache
def meanings() -> dict[str, str]:
    """What each term means, by its key."""
    return {term.key: term.meaning for section in glossary() for term in section.terms}
