"""What a part of AutoSync needs beyond the core, by extra (`pip install 'autosync[EXTRA]'`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from autosync.errors import NotSupported

OF_TUNE = (
    *("numba", "scipy", "sklearn", "pandas", "pyarrow", "safetensors", "threadpoolctl"),
    *("torch_geometric", "typer", "rich"),
)
OF_SERVICE = (
    *("fastapi", "starlette", "uvicorn", "h11", "anyio", "sqlalchemy", "alembic", "jinja2"),
    *("markupsafe", "python_multipart"),
)
EXTRA_OF = dict.fromkeys(OF_TUNE, "tune") | dict.fromkeys(OF_SERVICE, "service")
"""The extra that brings each top-level module that the core does without."""


def missing_extra(error: ModuleNotFoundError) -> NotSupported | None:
    """The refusal for a module that is not installed; None where no extra brings it."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    if extra is None:
        return None
    return NotSupported(
        f"this needs {module}, which is not installed here.",
        thing=module,
        value=module,
        remedy=f"pip install 'autosync[{extra}]'",
    )


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
