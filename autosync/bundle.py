"""A bundle: the file that a training script gets."""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict

from autosync.atomic_write import replaced_atomically
from autosync.documents import STRICT, UNLESS_ONE, from_data, from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput, InvalidStrategy
from autosync.extensions.document import ExtensionDocument
from autosync.extensions.registry import EXTENSIONS, of_plan, verification_of
from autosync.graph import DType
from autosync.plan import Plan, compile_plans, plan_of
from autosync.plan.plan_document import upgraded
from autosync.population import encode
from autosync.strategy import Strategy
from autosync.verification import check_runnable


@dataclass(frozen=True, slots=True)
class VariableSpec:
    name: str
    shape: tuple[int, ...]
    dtype: DType
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Evidence:
    """The strategy's measured speed and where it was measured.

    step_seconds, ddp_step_seconds: medians over interleaved repeats; None when never run.
    accumulate: batches of an update, which the seconds are of.
    """

    predicted_seconds: float | None = None
    step_seconds: float | None = None
    ddp_step_seconds: float | None = None
    measured_on: str = ""
    accumulate: Annotated[int, UNLESS_ONE] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Bundle:
    """A strategy with its plan, the variables it is for, and the host of every rank."""

    domain_id: str
    strategy: Strategy
    plan: Plan
    variables: tuple[VariableSpec, ...]
    hosts: tuple[str, ...]
    backend: Literal["gloo", "nccl"]
    evidence: Evidence = Evidence()
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        check_runnable(self.strategy.choices, self.plan.world_size)
        _check_compiled_from(self.strategy, self.plan)


def _check_compiled_from(strategy: Strategy, plan: Plan) -> None:
    """Raises InvalidInput where one of the two was edited by hand: a job runs the plan, and would
    ignore what the strategy says."""
    said, planned = of_plan(strategy.extensions), plan.extensions
    odd = [each.key for each in (*said, *planned) if (each in said) != (each in planned)]
    odd += ["engine"] if strategy.engine != plan.sharding else []
    if odd:
        raise InvalidInput(
            f"the bundle's strategy and its plan differ in {odd[0]!r}: the plan, which a job runs, "
            "was not compiled from this strategy.",
            thing=f"bundle.strategy.{odd[0]}",
            value=odd,
            remedy="Make a bundle of the strategy by autosync.bundle.make_bundle, or tune again.",
        )


def make_bundle(strategy: Strategy, domain: Domain, evidence: Evidence | None = None) -> Bundle:
    """Compile a verified strategy into a bundle.

    Raises:
        NotSupported: it can be predicted, but not run; see `check_runnable`.
    """
    population = encode([strategy], domain)
    plan = plan_of(compile_plans(population, domain), population, 0, domain)
    node_of_rank = domain.cluster.node_of_server()[: domain.world_size]
    return Bundle(
        domain_id=domain.id,
        strategy=strategy,
        plan=plan,
        variables=tuple(
            VariableSpec(variable.name, variable.shape, variable.dtype)
            for variable in domain.graph.variables
        ),
        hosts=tuple(domain.cluster.nodes[node].address for node in node_of_rank),
        backend=domain.cluster.backend,
        evidence=evidence or Evidence(),
    )


def with_extension(shipped: Bundle, entry: ExtensionDocument) -> Bundle:
    """The same bundle with an extension that changes no message of the plan. The bundle's
    measurements were made without the extension, so they are left out.

    Raises:
        InvalidStrategy: it changes messages, or the strategy cannot carry it; see `check_strategy`
            of its verification.
    """
    if EXTENSIONS[entry.key].has_messages:
        raise InvalidStrategy(
            f"the extension {entry.key!r} changes a plan's messages, and the bundle has those of a "
            "strategy without it.",
            thing="extensions",
            value=entry.key,
            remedy="Make a bundle of a strategy that carries it, by autosync.bundle.make_bundle.",
        )
    strategy = shipped.strategy.carrying(entry)
    verification_of(entry.key).check_strategy(strategy)
    plan = replace(shipped.plan, extensions=of_plan(strategy.extensions))
    return replace(shipped, strategy=strategy, plan=plan, evidence=Evidence())


def save_bundle(shipped: Bundle, path: str | Path) -> None:
    """Write the bundle whole or not at all."""
    with replaced_atomically(path) as draft:
        draft.write_bytes(to_json(shipped).encode())


def load_bundle(path: str | Path) -> Bundle:
    """Raises InvalidInput naming the file when it is missing or is no bundle."""
    path = Path(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"cannot read the bundle {str(path)!r}: {error.strerror}.",
            thing="bundle",
            value=str(path),
            remedy="Write one with `autosync tune` or `autosync export`, or in a job with "
            "`autosync.tune(save=...)`, which writes it on rank 0's host alone.",
        ) from None
    return read_bundle(text, source=str(path))


def read_bundle(text: str | bytes, source: str = "bundle") -> Bundle:
    """A bundle of this version or, by its plan, of an earlier one.

    Raises:
        InvalidInput: names the field that is wrong, its value and what was expected.
    """
    with suppress(ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        data = json.loads(text)
        if data["plan"]["version"] == 1:
            return from_data(Bundle, data | {"plan": upgraded(data["plan"])}, source)
    return from_json(Bundle, text, source)
