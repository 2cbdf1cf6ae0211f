"""The operator's tokens: keys of scope admin that stand in the service's environment, not in its
database. One, or several with names."""

import re
from dataclasses import dataclass, field

from autosync.api.engine.api_keys import CLIENT_NAME, KEY
from autosync.environment import TOKEN_VARIABLE
from autosync.errors import InvalidInput

NAMED = re.compile(f"({CLIENT_NAME}):(.*)")
USUAL_REMEDY = f"Set {TOKEN_VARIABLE} to a long random text, or leave it out on 127.0.0.1."


@dataclass(frozen=True, slots=True)
class NamedToken:
    """name: of the client that it belongs to; empty where the only token has none."""

    name: str
    token: str = field(repr=False)


def named_tokens(text: str) -> tuple[NamedToken, ...]:
    """The tokens of `NAME:TOKEN,NAME:TOKEN`, or the one without a name.

    Raises:
        InvalidInput: one is empty or of characters that no header carries, one of several has no
            name, two are alike, or one is the key of a database, whose scope it would leave behind.
    """
    named = [NAMED.fullmatch(part.strip()) for part in text.split(",")]
    if any(named) and not all(named):
        raise _bad_token("is one of several, and has no name")
    given = [NamedToken(found[1], found[2]) for found in named if found] or [NamedToken("", text)]
    for each in given:
        if not each.token.strip():
            raise _bad_token("is empty, so it would let everyone in")
        if not (each.token.isascii() and each.token.isprintable()):
            raise _bad_token("has characters that are no printable ASCII")
        if KEY.fullmatch(each.token):
            remedy = f"Unset {TOKEN_VARIABLE}: keys of the database are let in by themselves."
            raise _bad_token("is a key of some database, made for a client", remedy)
    for what in ("name", "token"):
        if len({getattr(each, what) for each in given}) < len(given):
            raise _bad_token(f"has the {what} of another one")
    return tuple(given)


def _bad_token(why: str, remedy: str = USUAL_REMEDY) -> InvalidInput:
    return InvalidInput(f"the token {why}.", thing="--token", remedy=remedy)
