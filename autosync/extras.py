"""Packages that AutoSync needs for some inputs or frameworks only: its extras."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from autosync.errors import NotSupported


@contextmanager
def needs(package: str, what: str) -> Iterator[None]:
    """Put this around the import of an optional package.

    package: its name, which is also the name of the extra. what: what needs it, for the message.

    Raises:
        NotSupported: the package is not installed; says how to install it.
    """
    try:
        yield
    except ImportError as error:
        if find_spec(package) is not None:
            raise
        raise NotSupported(
            f"{what} needs {package}, which is not installed here.",
            thing=package,
            value=package,
            remedy=f"pip install 'autosync[{package}]'",
        ) from error
