"""How strategies are refused, and how far shares may be from even."""

from autosync.errors import InvalidStrategy
from autosync.graph import Variable

SHARE_TOLERANCE = 1e-6


def variable_refusal(
    variable: Variable, field: str, value: object, why: str, remedy: str = ""
) -> InvalidStrategy:
    return InvalidStrategy(
        f"variable {variable.name!r} {why}.",
        thing=f"variable {variable.name}, {field}",
        value=value,
        remedy=remedy,
    )
