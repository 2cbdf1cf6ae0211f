"""The frameworks themselves are extras of the package; what none of them takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from autosync.bundle import Bundle
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


def refuse_other_training(shipped: Bundle, framework: str) -> None:
    """Raises NotSupported: the framework would save, load and unwrap whole parameters, or clip and
    log gradients of an earlier iteration."""
    if shipped.plan.staleness:
        raise NotSupported(
            f"the bundle applies gradients {shipped.plan.staleness} iterations later, and "
            f"{framework} takes those that it sees for the last batch's.",
            thing="bundle.plan.staleness",
            value=shipped.plan.staleness,
            remedy="Use autosync.distribute(..., allow_staleness=True) in a script of your own, or "
            "a strategy of staleness 0.",
        )
    if shipped.plan.sharding is not None:
        raise NotSupported(
            f"the bundle puts torch's fully_shard on the model, whose parameters {framework} takes "
            "for whole.",
            thing="bundle.plan.engine",
            value=shipped.plan.engine,
            remedy=f"Use {framework}'s own FSDP2, or autosync.distribute in a script of your own; "
            "or tune with a space of sharded_parameters: false.",
        )
