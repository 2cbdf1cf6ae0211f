"""The frameworks themselves are extras of the package."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from autosync.errors import NotSupported


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Around the import of a framework.

    package: its name, which is the extra's, too.

    Raises:
        NotSupported: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        if find_spec(package) is not None:
            raise
        raise NotSupported(
            f"autosync.frameworks.{package} needs {package}, which is not installed here.",
            thing=package,
            value=package,
            remedy=f"pip install 'autosync[{package}]'",
        ) from error
