"""Parsed documents are kept for the next reader, as many as there is room for."""

from dataclasses import replace

from autosync.api.db.parsed_documents import ParsedDocuments
from autosync.documents import to_json
from autosync.graph import ModelGraph
from tests.domains import chain_graph

GRAPHS = [replace(chain_graph(), name=name) for name in ("one", "two", "six")]
TEXTS = [to_json(graph) for graph in GRAPHS]


def test_what_was_asked_for_last_is_kept() -> None:
    asked: list[int] = []

    def read(documents: ParsedDocuments, number: int) -> ModelGraph:
        def text() -> str:
            asked.append(number)
            return TEXTS[number]

        return documents.parsed(ModelGraph, str(number), text)

    documents = ParsedDocuments(2 * len(TEXTS[0]))
    for number in (0, 1, 0, 2, 0, 1):
        assert read(documents, number) == GRAPHS[number]
    assert asked == [0, 1, 2, 1]
    nothing = ParsedDocuments()
    assert read(nothing, 0) is not read(nothing, 0)
    small = ParsedDocuments(1)
    assert read(small, 0) is read(small, 0)
