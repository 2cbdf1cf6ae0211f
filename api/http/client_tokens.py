"""The tokens that clients show: one, or several with names."""

import re
from dataclasses import dataclass, field

from autosync.environment import TOKEN_VARIABLE
from autosync.errors import InvalidInput

NAMED = re.compile(r"([A-Za-z0-9_.-]{1,40}):(.*)")


@dataclass(frozen=True, slots=True)
class NamedToken:
    """name: of the client that it belongs to; empty where the only token has none."""

    name: str
    token: str = field(repr=False)


def named_tokens(text: str) -> tuple[NamedToken, ...]:
    """The tokens of `NAME:TOKEN,NAME:TOKEN`, or the one without a name.

    Raises:
        InvalidInput: one is empty or of characters that no header carries, one of several has no
            name, or two are alike.
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
    for what in ("name", "token"):
        if len({getattr(each, what) for each in given}) < len(given):
            raise _bad_token(f"has the {what} of another one")
    return tuple(given)


def _bad_token(why: str) -> InvalidInput:
    return InvalidInput(
        f"the token {why}.",
        thing="--token",
        remedy=f"Set {TOKEN_VARIABLE} to a long random text, or leave it out on 127.0.0.1.",
    )
