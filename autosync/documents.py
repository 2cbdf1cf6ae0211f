"""Canonical JSON of the domain objects, their identity, and strict reading."""

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=False)
"""`__pydantic_config__` of every document: an unknown field is an error, not ignored."""

UNLESS_ZERO = Field(exclude_if=lambda value: value == 0)
UNLESS_ONE = Field(exclude_if=lambda value: value == 1)
UNLESS_EMPTY = Field(exclude_if=lambda value: value == "")
"""Annotate what documents gained later: left out where it is 0, 1 or "", so that the documents
from before keep their text, and with it their identity."""

UNLESS_SYNCHRONOUS = Field(exclude_if=lambda value: value == (0,))
"""The same of by how many iterations updates may be late."""

UNLESS_TRUE = Field(exclude_if=lambda value: value is True)
"""The same of a switch that is on by default."""

UNLESS_FALSE = Field(exclude_if=lambda value: value is False)
"""The same of one that is off by default."""

UNLESS_NONE = Field(exclude_if=lambda value: value is None)
"""The same of what may be absent."""

UNLESS_NO_ITEMS = Field(exclude_if=lambda value: not value)
"""The same of a list that may be empty."""

UNLESS_NEXT_FORWARD = Field(exclude_if=lambda value: value == "next_forward")
"""The same of when a schedule gathers."""

NAMED_PROBLEMS = 3
"""How many fields an error names besides the first that is wrong."""

LARGEST_COUNT = 2**62
COUNT = Field(ge=0, le=LARGEST_COUNT)
"""Annotates a count or a size: 64 bits hold it, and what is computed from a few of them is no
number of thousands of digits."""

FIRST_ERROR = Field(fail_fast=True)
"""Annotates a long list: a document of a million wrong items is refused at its first."""

T = TypeVar("T")


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """The validator and serializer of a document class; built once."""
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def to_data(document: object) -> Any:
    """The document as plain JSON data (dicts, lists, strings, numbers)."""
    return adapter(type(document)).dump_python(document, mode="json")


def to_json(document: object) -> str:
    """Canonical JSON: sorted keys, no spaces; equal documents give equal text."""
    return json.dumps(to_data(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_hash(document: object) -> str:
    """Identity of a document: the first 128 bits of SHA-256 of its canonical JSON, in hex."""
    return text_hash(to_json(document))


def text_hash(text: str) -> str:
    """The same of a document that is canonical JSON already."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def from_data(cls: type[T], data: object, source: str = "document") -> T:
    """Validate plain data as `cls`.

    Raises:
        InvalidInput: names the offending field, its value and what was expected.
    """
    try:
        return cast(T, adapter(cls).validate_python(data))
    except ValidationError as error:
        raise _explained(error, cls, source) from None


def from_json(cls: type[T], text: str | bytes, source: str = "document", remedy: str = "") -> T:
    """Parse and validate JSON text as `cls`; see `from_data`. remedy: where no command prints the
    schema of `cls`."""
    try:
        return cast(T, adapter(cls).validate_json(text))
    except ValidationError as error:
        raise _explained(error, cls, source, remedy) from None


def json_schema(cls: type[Any]) -> dict[str, Any]:
    return adapter(cls).json_schema()


def _explained(
    error: ValidationError, cls: type[Any], source: str, remedy: str = ""
) -> InvalidInput:
    first, *others = error.errors(include_url=False)
    where = _field_path(first)
    value = repr(first["input"])
    value = value if len(value) <= 80 else value[:77] + "..."
    field = f"{source}, {where}" if where else source
    also = further_problems([_field_path(each) for each in others])
    return InvalidInput(
        f"{field}: {first['msg']}, got {value}.{also}",
        thing=where or source,
        value=value,
        remedy=remedy
        or f"See the JSON Schema of {cls.__name__} (`autosync schema {cls.__name__}`).",
    )


def _field_path(problem: "ErrorDetails") -> str:
    return ".".join(str(part) for part in problem["loc"])


def further_problems(fields: Sequence[str]) -> str:
    """How many more problems there are, and the fields of the first few: one that nobody knows is
    often the misspelt name of one that is missing. fields: dotted, empty where it is the whole."""
    if not fields:
        return ""
    named = ", ".join(field for field in fields[:NAMED_PROBLEMS] if field)
    names = f": {named}" if named else ""
    return f" (and {len(fields)} more problem{'s' if len(fields) > 1 else ''}{names})"
