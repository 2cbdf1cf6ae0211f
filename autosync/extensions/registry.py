"""The extensions of strategies: the documents that a strategy may carry, how these stand in JSON,
and where each extension keeps its other parts.

An extension is a folder. `document.py` is what a strategy says of it, `verification.py` refuses and
describes such strategies. `attachment.py` is loaded by the runtime where a strategy carries it
(`extensions.seams`), `messages.py` by the compiler. `prediction.py` is loaded by the simulator,
`proposals.py` by the search, and neither by a training process.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, fields, make_dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from autosync.documents import UNLESS_NO_ITEMS, UNLESS_NONE
from autosync.errors import InvalidStrategy
from autosync.extensions.compilation.document import CompiledRegions, Regions
from autosync.extensions.document import ExtensionDocument
from autosync.extensions.offload.document import Offload
from autosync.extensions.placement.document import PlacedModules, Placement
from autosync.extensions.staleness.document import Staleness
from autosync.nccl_knobs import NcclKnobs

if TYPE_CHECKING:  # which import this module
    from autosync.domain import Domain
    from autosync.strategy import Strategy

Entries = tuple[ExtensionDocument, ...]
"""What a strategy carries: at most one document of a key, in the order of the keys."""

T = TypeVar("T")


class Verification(Protocol):
    """What `verification.py` of an extension has, as functions, for strategies that carry its
    entry."""

    def check_strategy(self, strategy: "Strategy") -> None:
        """Raises InvalidStrategy where the entry does not go with the rest of the strategy,
        whatever the domain."""

    def verify(self, strategy: "Strategy", domain: "Domain", allow_inexact: bool) -> None:
        """Raises InvalidStrategy as `check_strategy`, or where the entry does not go with the
        domain. allow_inexact: training may end elsewhere than with one process."""

    def describe(self, strategy: "Strategy", domain: "Domain | None") -> list[str]:
        """Phrases for ranked tables and reports. domain: or None, where sizes are not known."""

    def label(self, strategy: "Strategy") -> str:
        """A few words."""


Seam = Literal["beside", "engine", "division", "groups"]
"""How `attachment.py` of an extension meets the runtime; see `extensions.seams`."""


class Extension(NamedTuple):
    """folder: below `autosync.extensions`. document: its type. seam: with the runtime. json_type:
    of its entry in JSON. absent: the entry of strategies that do not carry it. value: the field of
    the document that stands in JSON in its place; empty where the document does itself. in_plan:
    whether a plan carries it, too. has_messages: whether its `messages.py` changes compiled
    plans."""

    folder: str
    document: type[ExtensionDocument]
    seam: Seam
    json_type: Any
    absent: Any
    value: str = ""
    in_plan: bool = False
    has_messages: bool = False


EXTENSIONS = {
    "compile_regions": Extension(
        "compilation",
        CompiledRegions,
        "beside",
        Annotated[Regions, UNLESS_NO_ITEMS],
        (),
        "regions",
    ),
    "nccl": Extension(
        "nccl", NcclKnobs, "groups", Annotated[NcclKnobs | None, UNLESS_NONE], None, in_plan=True
    ),
    "placement": Extension(
        "placement",
        Placement,
        "division",
        Annotated[PlacedModules, UNLESS_NO_ITEMS],
        (),
        "modules",
        in_plan=True,
        has_messages=True,
    ),
    "staleness": Extension("staleness", Staleness, "engine", int, 0, "iterations", in_plan=True),
    "swap": Extension("offload", Offload, "beside", Annotated[Offload | None, UNLESS_NONE], None),
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


def of_plan(entries: Entries) -> Entries:
    """What the plan of a strategy with these carries of them."""
    return tuple(entry for entry in entries if EXTENSIONS[entry.key].in_plan)


def iterations_in_flight(entries: Entries) -> int:
    """How many iterations later the sums of one may be applied; 0 where replicas are equal."""
    return max((entry.iterations_in_flight for entry in entries), default=0)


def unsteady_passes(entries: Entries) -> int:
    """Iterations before the steady state, which trials run as warm-up."""
    return sum(entry.unsteady_passes for entry in entries)


def to_save_memory(memory_bytes: float) -> list[tuple[str, ExtensionDocument]]:
    """See `ExtensionDocument.to_save_memory`, of all extensions."""
    ways = (each.document.to_save_memory(memory_bytes) for each in EXTENSIONS.values())
    return [way for of_one in ways for way in of_one]


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


def flat_schema(cls: Any, handler: GetCoreSchemaHandler, of_plans: bool = False) -> CoreSchema:
    """pydantic's schema of a document with a field `extensions`: each entry is a field of its own
    in JSON, named by its key. of_plans: those only that a plan carries."""
    form, read, write = _flat_form(cls, of_plans)
    inner = handler.generate_schema(form)
    return core_schema.no_info_wrap_validator_function(
        lambda value, parse: value if isinstance(value, cls) else read(parse(value)),
        inner,
        serialization=core_schema.wrap_serializer_function_ser_schema(
            lambda document, dump: dump(write(document)), schema=inner
        ),
    )


@lru_cache(maxsize=8)
def _flat_form(
    cls: Any, of_plans: bool
) -> tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]:
    """The document with its entries as fields, and functions from this form and to it."""
    own = [each for each in fields(cls) if each.name != "extensions"]
    carried = {key: each for key, each in EXTENSIONS.items() if each.in_plan or not of_plans}
    columns: list[Any] = [(each.name, each.type, _as_default(each)) for each in own]
    columns += [(key, e.json_type, field(default=e.absent)) for key, e in carried.items()]
    namespace = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__pydantic_config__": cls.__pydantic_config__,
    }
    form = make_dataclass(cls.__name__, columns, namespace=namespace, frozen=True)
    names = [each.name for each in own]

    def read(given: Any) -> Any:
        entries = [_read_entry(each, getattr(given, key)) for key, each in carried.items()]
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
    of_value: Any = extension.document
    document: ExtensionDocument = of_value(value) if extension.value else value
    return document
