"""Parsed documents that are kept for the next reader, by the hash of their content."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from autosync.documents import from_json

Document = TypeVar("Document")


class ParsedDocuments:
    """The documents that were asked for last. Frozen, so that readers share them.

    most_bytes: of their texts together; the newest one is kept even if it is larger. 0: none is.
    """

    def __init__(self, most_bytes: int = 0):
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[type[Any], str], tuple[Any, int]] = OrderedDict()

    def parsed(self, kind: type[Document], key: str, text: Callable[[], str]) -> Document:
        """key: hash of the content. text: asked for where it is not known."""
        with self._lock:
            if (kind, key) in self._kept:
                self._kept.move_to_end((kind, key))
                known: Document = self._kept[kind, key][0]
                return known
        document_text = text()
        document = from_json(kind, document_text)
        if self.most_bytes:
            with self._lock:
                self._kept[kind, key] = document, len(document_text)
                while len(self._kept) > 1 and self._bytes() > self.most_bytes:
                    self._kept.popitem(last=False)
        return document

    def _bytes(self) -> int:
        return sum(size for _, size in self._kept.values())
