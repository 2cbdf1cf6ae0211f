"""The extensions of strategies: the documents that a strategy may carry, how these stand in JSON,
and where each extension keeps its other parts.

An extension is a folder. `document.py` is what a strategy says of it, `verification.py` refuses and
describes such strategies. `prediction.py` is loaded by the simulator, `proposals.py` by the search,
and neither by a training process.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, fields, make_dataclass
from functools import lru_cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from autosync.documents import UNLESS_NO_ITEMS, UNLESS_NONE
from autosync.errors import InvalidStrategy
from autosync.extensions.offload.document import Offload
from autosync.extensions.placement.document import PlacedModules, Placement
from autosync.extensions.staleness.document import Staleness


class ExtensionDocument(Protocol):
    """A frozen dataclass. key: of its entry in the JSON of a strategy."""

    key: ClassVar[str]


Entries = tuple[ExtensionDocument, ...]
"""What a strategy carries: at most one document of a key, in the order of the keys."""

T = TypeVar("T")


class Verification(Protocol):
    """What `verification.py` of an extension has, as functions, for strategies that carry its
    entry."""

    def verify(self, strategy: Any, domain: Any, allow_inexact: bool) -> None:
        """Raises InvalidStrategy where the entry does not go with the rest of the strategy or the
        domain. allow_inexact: training may end elsewhere than with one process."""

    def describe(self, strategy: Any, domain: Any) -> list[str]:
        """Phrases for ranked tables and reports. domain: or None, where sizes are not known."""

    def label(self, strategy: Any) -> str:
        """A few words."""


class Extension(NamedTuple):
    """folder: below `autosync.extensions`. document: its type. json_type: of its entry in JSON.
    absent: the entry of strategies that do not carry it. value: the field of the document that
    stands in JSON in its place; empty where the document does itself."""

    folder: str
    document: type[Any]
    json_type: Any
    absent: Any
    value: str = ""


EXTENSIONS = {
    "placement": Extension(
        "placement", Placement, Annotated[PlacedModules, UNLESS_NO_ITEMS], (), "modules"
    ),
    "staleness": Extension("staleness", Staleness, int, 0, "iterations"),
    "swap": Extension("offload", Offload, Annotated[Offload | None, UNLESS_NONE], None),
}
"""By key, in order. `json_type` and `absent` are part of the identity of stored strategies."""


def part_of(key: str, name: str) -> Any:
    """A module of an extension, such as its `prediction`; loaded at its first use."""
    return import_module(f"autosync.extensions.{EXTENSIONS[key].folder}.{name}")


def verification_of(key: str) -> Verification:
    found: Verification = part_of(key, "verification")
    return found


def entry_of(entries: Entries, kind: type[T]) -> T | None:
    """The document of this type; None where there is none."""
    return next((entry for entry in entries if isinstance(entry, kind)), None)


def in_order(entries: Sequence[ExtensionDocument]) -> Entries:
    """Raises InvalidStrategy where two have one key."""
    ordered = tuple(sorted(entries, key=lambda each: each.key))
    keys = [each.key for each in ordered]
    if len({*keys}) < len(keys):
        raise InvalidStrategy(
            f"a strategy has the extensions {keys}: at most one of each.",
            thing="extensions",
            value=keys,
        )
    return ordered


def flat_schema(cls: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """pydantic's schema of a document with a field `extensions`: each entry is a field of its own
    in JSON, named by its key."""
    form, read, write = _flat_form(cls)
    inner = handler.generate_schema(form)
    return core_schema.no_info_wrap_validator_function(
        lambda value, parse: value if isinstance(value, cls) else read(parse(value)),
        inner,
        serialization=core_schema.wrap_serializer_function_ser_schema(
            lambda document, dump: dump(write(document)), schema=inner
        ),
    )


@lru_cache(maxsize=8)
def _flat_form(cls: Any) -> tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]:
    """The document with its entries as fields, and functions from this form and to it."""
    own = [each for each in fields(cls) if each.name != "extensions"]
    columns: list[Any] = [(each.name, each.type, _as_default(each)) for each in own]
    columns += [(key, e.json_type, field(default=e.absent)) for key, e in EXTENSIONS.items()]
    namespace = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__pydantic_config__": cls.__pydantic_config__,
    }
    form = make_dataclass(cls.__name__, columns, namespace=namespace, frozen=True)
    names = [each.name for each in own]

    def read(given: Any) -> Any:
        entries = [_read_entry(each, getattr(given, key)) for key, each in EXTENSIONS.items()]
        extensions = tuple(entry for entry in entries if entry is not None)
        return cls(**{name: getattr(given, name) for name in names}, extensions=extensions)

    def write(document: Any) -> Any:
        values = {name: getattr(document, name) for name in names}
        for entry in document.extensions:
            value = EXTENSIONS[entry.key].value
            values[entry.key] = getattr(entry, value) if value else entry
        return form(**values)

    return form, read, write


def _as_default(declared: Any) -> Any:
    if declared.default_factory is not MISSING:
        return field(default_factory=declared.default_factory)
    return field() if declared.default is MISSING else field(default=declared.default)


def _read_entry(extension: Extension, value: Any) -> ExtensionDocument | None:
    if value == extension.absent:
        return None
    document: ExtensionDocument = extension.document(value) if extension.value else value
    return document
