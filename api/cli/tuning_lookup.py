"""Finding a tuning, or one of its strategies, by the beginning of its id."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autosync.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from autosync.api.client.rest_client import Client
    from autosync.api.views.tuning_schemas import RankedStrategy, Tuning

BEGINNING = re.compile("[0-9a-f]{4,32}")
ENDED = ("finished", "failed", "cancelled")
"""States of tunings that report nothing more."""
SHOWN = 5
"""Ids that a refusal lists."""


def find_tuning(client: "Client", prefix: str) -> "Tuning":
    """The one tuning whose id begins so.

    Raises:
        NotFound: there is none; lists the latest. InvalidInput: there are several.
    """
    found: list[Tuning] = []
    if BEGINNING.fullmatch(prefix.lower()):
        found = client.tunings.list(prefix=prefix.lower(), limit=SHOWN).items
    if len(found) == 1:
        return found[0]
    latest = ", ".join(
        f"{each.id[:8]} ({each.state})" for each in client.tunings.list(limit=SHOWN).items
    )
    remedy = f"The latest: {latest}." if latest else "There is none; check --db or --url."
    raise _not_one("tuning", "tunings", prefix, [each.id for each in found], remedy)


def find_strategy(prefix: str, ranked: "Sequence[RankedStrategy]") -> str:
    """The id, among a tuning's strategies, that begins so. Raises as `find_tuning`."""
    known = [each.strategy_id for each in ranked]
    usable = BEGINNING.fullmatch(prefix.lower()) is not None
    found = [each for each in known if usable and each.startswith(prefix.lower())]
    if len(found) == 1:
        return found[0]
    fastest = ", ".join(each[:8] for each in known[:SHOWN])
    remedy = f"The fastest: {fastest}; `autosync show` lists them." if known else "It has none yet."
    raise _not_one("strategy", "strategies", prefix, found, remedy)


def _not_one(kind: str, several: str, prefix: str, found: list[str], none: str) -> Exception:
    if not found:
        message = f"no {kind} here has an id that begins with {prefix!r}."
        return NotFound(message, thing=kind, value=prefix, remedy=none)
    return InvalidInput(
        f"several {several} have ids that begin with {prefix!r}.",
        thing=kind,
        value=prefix,
        remedy=f"Give more of it: {', '.join(each[:12] for each in found[:SHOWN])}.",
    )
