"""Every error a user can meet, under one root."""

LONGEST_MESSAGE = 2000
"""A name in a file may be gigabytes."""


class AutosyncError(Exception):
    """Root of all errors: says what is wrong with which value, and the way out.

    `thing` names what was refused (a field, file or resource), `value` is what was given,
    `remedy` is what the user can do. The command line and the REST service print all three.
    What was given may be as long as it likes: a message of more than LONGEST_MESSAGE characters is
    cut.
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
    """A document, file or argument that cannot be what it claims to be."""


class InvalidStrategy(AutosyncError):
    """A strategy that cannot run on its domain, or does not synchronize it."""


class BudgetTooSmall(InvalidStrategy):
    """A memory budget that holds no training step: with a larger one the strategy would run."""


class NotSupported(AutosyncError):
    """A valid choice that this machine, backend or version cannot execute."""


class DeviceMemoryExceeded(AutosyncError):
    """More bytes were asked of an emulated device than it has."""


class NotTraceable(AutosyncError):
    """A module whose dataflow graph cannot be recorded."""


class NotFound(AutosyncError):
    """A name or identifier that nothing has."""
