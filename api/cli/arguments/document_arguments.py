"""Documents that were typed: files, and names of what is bundled. Refusals name what was typed."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from autosync.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from autosync.bundle import Bundle
    from autosync.cluster import Cluster
    from autosync.strategy import Strategy

MOST_FILE_BYTES = 64_000_000
"""Of a document; the largest that are known have some 5 MB."""


def read_bytes(path: Path, what: str, most: int = MOST_FILE_BYTES) -> bytes:
    """Raises InvalidInput where it cannot be read, or is larger than `most` bytes."""
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= most else b""
    except OSError as error:
        raise InvalidInput(
            f"cannot read the {what} {str(path)!r}: {error.strerror}.",
            thing=what,
            value=str(path),
            remedy="Check the path.",
        ) from None
    if size > most:
        raise InvalidInput(
            f"the {what} {str(path)!r} has {size} bytes, more than {most}.",
            thing=what,
            value=size,
            remedy="Give a smaller one: no document of a model that is known is so large.",
        )
    return data


def load_named_cluster(name: str) -> "Cluster":
    """A bundled cluster by name, or a YAML file; suggests what was probably meant."""
    from autosync.cluster_file import bundled_clusters, load_cluster

    known = list(bundled_clusters())
    path = Path(name)
    if name not in known and path.suffix not in (".yaml", ".yml") and not path.is_file():
        raise unknown_name("cluster", name, known, "A YAML file will do as well.")
    return load_cluster(name)


def load_strategy(path: Path) -> "Strategy":
    """The strategy of a strategy file or of a bundle."""
    from autosync.strategy import Strategy

    document = load_strategy_or_bundle(path)
    return document if isinstance(document, Strategy) else document.strategy


def load_strategy_or_bundle(path: Path) -> "Strategy | Bundle":
    """What the file holds, told apart by the field `strategy`, which only a bundle has."""
    import json

    from autosync.bundle import Bundle
    from autosync.documents import from_data
    from autosync.strategy import Strategy

    try:
        data = json.loads(read_bytes(path, "strategy"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{path} is no JSON: {error}.",
            thing="strategy",
            value=str(path),
            remedy="Give a bundle from `autosync tune` or a strategy (`autosync schema Strategy`).",
        ) from None
    if isinstance(data, dict) and "strategy" in data:
        return from_data(Bundle, data, source=str(path))
    return from_data(Strategy, data, source=str(path))


def unknown_name(kind: str, name: str, known: list[str], remedy: str) -> NotFound:
    """A NotFound that suggests what was probably meant."""
    close = get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(close)}? " if close else f"There are: {', '.join(known)}. "
    return NotFound(f"no {kind} is called {name!r}.", thing=kind, value=name, remedy=hint + remedy)
