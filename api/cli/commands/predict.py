"""`autosync predict`: what known methods take on a cluster one need not have."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autosync.api.cli.console import milliseconds, out, print_json, print_table, say, warn
from autosync.api.cli.options import (
    DEFAULT_DATABASE,
    SIMULATOR_HELP,
    DatabaseUrl,
    DeviceType,
    Efficiency,
    Json,
    ProfileFile,
)
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.cluster import Cluster
    from autosync.domain import Domain
    from autosync.simulator.cost.fitted_constants import Constants
    from autosync.simulator.simulator_contract import Simulator
    from autosync.strategy import Strategy


@dataclass(frozen=True, slots=True)
class StrategyToPredict:
    """A strategy to predict. engine: the system whose time a message it pays, or none."""

    name: str
    strategy: "Strategy"
    engine: str = ""


@dataclass(frozen=True, slots=True)
class StrategyPrediction:
    """Of one strategy. samples_per_second: over all devices. percent_of_limit: 100 cannot be
    beaten. engine_seconds: what its engine spends on each message."""

    strategy: str
    predicted_seconds: float
    samples_per_second: float
    limit_seconds: float
    percent_of_limit: float
    engine_seconds: float
    constants: str | None


def predict(
    model: Annotated[str, typer.Option(help="As in `autosync rank`.", show_default=False)],
    cluster: Annotated[str, typer.Option(help="As in `autosync rank`.", show_default=False)],
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A hand-designed strategy, a published method (WFBP-A2A, MG-WFBP, BSP-PS, ...; "
            "see docs/gpu-clusters.md) or a strategy file; may be repeated.",
            show_default="all hand-designed ones",
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Examples per replica.")] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(
            "--step-seconds-one-device", help="Seconds of one step on one device, if known."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="System whose time a message is added (bytescheduler), or none.",
            show_default="that of the published method",
        ),
    ] = None,
    constants: Annotated[
        str,
        typer.Option(help="Fitted constants: auto (by the cluster's name), none, or a name."),
    ] = "auto",
    simulator: Annotated[str, typer.Option(metavar="NAME", help=SIMULATOR_HELP)] = "timeline",
    device: DeviceType = None,
    efficiency: Efficiency = None,
    profile: ProfileFile = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: Json = False,
) -> None:
    """Predict what given strategies take on a cluster one need not have.

    Published methods are predicted with the constants fitted on their testbed.

    Example:

        autosync predict --model resnet50 --batch 64 --cluster rtx-2080-ti-8x4-10gbe \\
            --strategy MG-WFBP --strategy dear --step-seconds-one-device 0.2529
    """
    from dataclasses import asdict

    from autosync.api.cli.argument_loading import ProfileChoice, load_domain, load_simulator
    from autosync.api.cli.domain_summary import describe_domain
    from autosync.simulator.cost.fitted_constants import calibrated

    choice = ProfileChoice(profile, device, efficiency, step_seconds)
    domain = load_domain(model, cluster, batch, choice)
    fitted = _constants(constants, domain.cluster)
    if fitted is not None:
        domain = calibrated(domain, fitted.matrix_slowdown)
    asked = _asked(domain, strategy or [])
    describe_domain(domain)
    _say_constants(domain.cluster, fitted)
    predictor = load_simulator(simulator, db, domain)
    answers = _answers(domain, asked, engine, fitted, predictor)
    if json:
        print_json([asdict(answer) for answer in answers])
        return
    rows = [
        (
            each.strategy,
            milliseconds(each.predicted_seconds),
            f"{each.samples_per_second:.1f}",
            f"{each.percent_of_limit:.0f} %",
        )
        for each in sorted(answers, key=lambda each: each.predicted_seconds)
    ]
    columns = ("strategy", "predicted ms", "samples/s", "of the limit")
    print_table(columns, rows, right=columns[1:])
    out.print("[dim]Predictions: nothing was run.[/]")


def _constants(name: str, cluster: "Cluster") -> "Constants | None":
    from autosync.simulator.cost.fitted_constants import constants_of, load_constants

    if name == "none":
        return None
    return constants_of(cluster) if name == "auto" else load_constants(name)


def _say_constants(cluster: "Cluster", fitted: "Constants | None") -> None:
    """Which numbers are measured and which are assumed, on stderr."""
    kinds = ", ".join(cost.kind for cost in cluster.costs) or "none: all are assumed"
    say(f"Rates are those of the cluster file; startups it states: {kinds}.")
    if fitted is None:
        warn(
            "no constants were fitted on such a cluster: compute is not slowed down beside other "
            "devices, and engines cost nothing."
        )
        return
    say(
        f"Constants [bold]{fitted.name}[/]: {fitted.fitted}. Measured: {fitted.measured}. How far "
        "they carry: docs/gpu-clusters.md."
    )


def _answers(
    domain: "Domain",
    asked: list[StrategyToPredict],
    engine: str | None,
    fitted: "Constants | None",
    predictor: "Simulator",
) -> list[StrategyPrediction]:
    from dataclasses import replace

    from autosync.population import encode
    from autosync.simulator.cost.fitted_constants import with_engine
    from autosync.simulator.limit import iteration_limit

    bound = iteration_limit(domain).seconds
    answers = []
    for each in asked:
        spent = _engine_seconds(each.engine if engine is None else engine, fitted)
        under = replace(domain, cluster=with_engine(domain.cluster, spent)) if spent else domain
        seconds = float(predictor.predict(under, encode([each.strategy], under))[0])
        answers.append(
            StrategyPrediction(
                strategy=each.name,
                predicted_seconds=seconds,
                samples_per_second=domain.batch_size * domain.world_size / seconds,
                limit_seconds=bound,
                percent_of_limit=100.0 * bound / seconds,
                engine_seconds=spent,
                constants=fitted.name if fitted else None,
            )
        )
    return answers


def _engine_seconds(name: str, fitted: "Constants | None") -> float:
    """Of one message under a system.

    Raises:
        InvalidInput: no constants are in use that tell it.
    """
    if name in ("", "none"):
        return 0.0
    known = fitted.engine_seconds if fitted is not None else {}
    if name not in known:
        raise InvalidInput(
            f"what engine {name!r} spends on a message was not fitted for this cluster.",
            thing="--engine",
            value=name,
            remedy=f"Known: {', '.join(known) or 'none'}. Give --engine none to leave it out, or "
            "--constants NAME (rtx-2080-ti) to take it from another cluster.",
        )
    return known[name]


def _asked(domain: "Domain", names: list[str]) -> list[StrategyToPredict]:
    """The named strategies; all hand-designed ones when none is named."""
    from autosync.search.designs.design_table import hand_designed
    from autosync.search.space import Space

    if not names:
        return [StrategyToPredict(name, design) for name, design in hand_designed(domain, Space())]
    return [_one(domain, name) for name in names]


def _one(domain: "Domain", name: str) -> StrategyToPredict:
    """A hand-designed strategy, a published method or a file.

    Raises:
        InvalidInput, InvalidStrategy, NotSupported: it does not apply to this domain; says why.
        NotFound: nothing goes by that name; suggests what was probably meant.
    """
    from autosync.api.cli.argument_loading import load_strategy, unknown_name
    from autosync.search.designs.design_table import BUILDERS
    from autosync.search.designs.published_methods import METHODS, method_named
    from autosync.verification import verify

    engine = ""
    if name.lower() in map(str.lower, METHODS):
        method = method_named(name)
        strategy, engine = method.build(domain), method.engine
    elif name in BUILDERS:
        strategy = BUILDERS[name].build(domain)
    elif Path(name).is_file():
        strategy = load_strategy(Path(name))
    else:
        known = [*BUILDERS, *METHODS]
        raise unknown_name("strategy", name, known, "A strategy file will do too.")
    verify(strategy, domain, allow_lossy=True, allow_staleness=True)
    return StrategyToPredict(name, strategy, engine)
