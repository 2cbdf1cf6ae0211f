"""All errors that a user can see, under one root."""

LONGEST_MESSAGE = 2000
"""Longer messages are cut: a name in a file may have gigabytes."""


class AutosyncError(Exception):
    """Root of all errors: states what is wrong, with which value, and the way out.

    `thing` names what the error is about (a field, file or resource), `value` is its value, as the
    user gave it or as it was found, `remedy` is what the user can do. The command line and the
    REST service print all three.
    A message of more than LONGEST_MESSAGE characters is cut, since a given value may have any
    length.
    """

    def __init__(self, message: str, *, thing: str = "", value: object = None, remedy: str = ""):
        super().__init__(shortened(message))
        self.message = shortened(message)
        self.thing = shortened(thing)
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.thing, self.value, self.remedy)


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 3]}..."


def _rebuild(
    cls: type[AutosyncError], message: str, thing: str, value: object, remedy: str
) -> AutosyncError:
    return cls(message, thing=thing, value=value, remedy=remedy)


class InvalidInput(AutosyncError):
    """A document, file or argument is not valid."""


class InvalidStrategy(AutosyncError):
    """A strategy cannot run on its domain, or does not synchronize it."""


class BudgetTooSmall(InvalidStrategy):
    """A memory budget is too small for a training step; with a larger one it would run."""


class NotSupported(AutosyncError):
    """A choice is valid, but this machine, backend or version cannot execute it."""


class DeviceMemoryExceeded(AutosyncError):
    """More memory was requested of an emulated device than it has."""


class NotTraceable(AutosyncError):
    """The dataflow graph of a module cannot be recorded."""


class NotFound(AutosyncError):
    """Nothing has this name or identifier."""
