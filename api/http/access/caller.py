"""Who sends a request, and how one who may not is told so."""

from dataclasses import dataclass
from typing import Literal

from autosync.api.engine.api_keys import KeyScope, allows
from autosync.errors import AutosyncError

Way = Literal["key", "browser", "open"]


class NotAuthorized(AutosyncError):
    """Nobody knows who sends this: 401."""


class NotAllowed(AutosyncError):
    """They are known, or need not be, and may not do this: 403."""


@dataclass(frozen=True, slots=True)
class Caller:
    """client: whose tunings and limits these are: a name, or an address where there is none.

    way: by which they came: with a key or token, as a browser that logged in, or to a service that
    asks nobody.
    """

    client: str
    scope: KeyScope
    way: Way

    @property
    def may_tune(self) -> bool:
        return allows(self.scope, "tune")

    @property
    def may_administer(self) -> bool:
        return allows(self.scope, "admin")
