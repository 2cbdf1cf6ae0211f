"""The packages that parts of AutoSync need beyond the core, by extra
(`pip install 'autosync[EXTRA]'`)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from traceback import walk_tb

from autosync.errors import NotSupported

OF_TUNE = (
    *("numba", "scipy", "pandas", "pyarrow", "safetensors", "threadpoolctl"),
    *("torch_geometric", "typer", "rich"),
)
OF_SERVICE = (
    *("fastapi", "starlette", "uvicorn", "h11", "anyio", "sqlalchemy", "alembic", "jinja2"),
    *("markupsafe", "python_multipart"),
)
EXTRA_OF = dict.fromkeys(OF_TUNE, "tune") | dict.fromkeys(OF_SERVICE, "service")
"""The extra that installs each top-level module outside the core."""
UNKNOWN = "(version unknown)"


def failed_import(error: ImportError) -> NotSupported | None:
    """The error for a package that is not installed, does not fit the package that imports it, or
    refuses to be imported. None if AutoSync itself is at fault: one of its own modules, or one that
    no extra installs."""
    package = (error.name or "").partition(".")[0]
    importer = _importer(error)
    if not package or (find_spec(package) is None and not isinstance(error, ModuleNotFoundError)):
        # as numba refuses a newer NumPy; or a shared library that compiled code needs is not found,
        # where `name` is the last part of the module's
        named, found = _distribution(importer)
        if importer == "autosync" or found == UNKNOWN:
            return None
        reason = str(error).rstrip(". \n")
        return NotSupported(
            f"{named} {found} does not run here: {reason}.",
            thing=importer,
            value=found,
            remedy=f"pip check names what does not fit; pip install --upgrade {named}",
        )
    if package == "autosync" or package in sys.stdlib_module_names:
        return None
    if find_spec(package) is not None:
        named, found = _distribution(package)
        return NotSupported(
            f"{named} {found} does not fit {importer}: {error}.",
            thing=package,
            value=found,
            remedy=f"pip check names what does not fit; pip install --upgrade {named}",
        )
    if extra := EXTRA_OF.get(package):
        return NotSupported(
            f"this needs {package}, which is not installed here.",
            thing=package,
            value=package,
            remedy=f"pip install 'autosync[{extra}]'",
        )
    if importer == "autosync":
        return None
    named, _ = _distribution(importer)
    return NotSupported(
        f"{named} needs the module {package}, which is not installed here.",
        thing=package,
        value=package,
        remedy=f"pip check names the package; pip install {named} brings what {named} requires.",
    )


def _importer(error: ImportError) -> str:
    """The top-level package whose module ran the failed import statement."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    packages = [module.partition(".")[0] for module in modules]
    others = (name for name in reversed(packages) if name not in ("", "importlib"))
    return next(others, "autosync")


def _distribution(package: str) -> tuple[str, str]:
    """The name on the package index and the version of a top-level module's package."""
    # takes 14 ms to load
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    named = packages_distributions().get(package, [package])[0]
    try:
        return named, version(named)
    except PackageNotFoundError:
        return named, UNKNOWN


@contextmanager
def needs(package: str, what: str) -> Iterator[None]:
    """Put this around the import of an optional package.

    package: its name, which is also the name of the extra. what: the feature that needs it, for
        the message.

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
