"""`autosync predict`: what known methods take on a cluster one need not have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autosync.api.cli.completion import complete_design
from autosync.api.cli.console import milliseconds, out, print_json, print_table, say, warn
from autosync.api.cli.options import (
    DEFAULT_DATABASE,
    Batch,
    ClusterName,
    DatabaseUrl,
    DeviceType,
    Efficiency,
    Json,
    Model,
    Optimizer,
    ProfileFile,
    SimulatorName,
    StepSeconds,
)

if TYPE_CHECKING:
    from autosync.api.cli.prediction_answers import Calibration, StrategyToPredict
    from autosync.cluster import Cluster
    from autosync.domain import Domain


def predict(
    model: Model,
    cluster: ClusterName,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A hand-designed strategy, a published method (WFBP-A2A, MG-WFBP, BSP-PS, ...; "
            "see docs/gpu-clusters.md) or a strategy file; may be repeated.",
            show_default="all hand-designed ones",
            autocompletion=complete_design,
        ),
    ] = None,
    batch: Batch = None,
    optimizer: Optimizer = None,
    step_seconds: StepSeconds = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="System whose time a message is added (bytescheduler), or none.",
            show_default="that of the published method",
        ),
    ] = None,
    constants: Annotated[
        str,
        typer.Option(
            help="Fitted constants: auto (by the cluster's name; NCCL clusters of other names take "
            "rtx-2080-ti), none, or a name."
        ),
    ] = "auto",
    simulator: SimulatorName = "timeline",
    device: DeviceType = None,
    efficiency: Efficiency = None,
    profile: ProfileFile = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: Json = False,
) -> None:
    """Predict what given strategies take on a cluster one need not have.

    Published methods are predicted with the constants fitted on their testbed. An interval stands
    beside each prediction; beyond what was measured it is wider, and a warning says why.

    Examples:

        autosync predict resnet50 rtx-2080-ti-16x4-10gbe
        autosync predict resnet50 rtx-2080-ti-8x4-10gbe --batch 64 --step-seconds 0.2529 \\
            --strategy MG-WFBP --strategy dear
    """
    from dataclasses import asdict

    from autosync.api.cli.arguments.domain_arguments import (
        ProfileChoice,
        load_domain,
        load_simulator,
    )
    from autosync.api.cli.domain_summary import describe_domain
    from autosync.api.cli.prediction_answers import answer_all, calibrate

    choice = ProfileChoice(profile, device, efficiency, step_seconds)
    alone = load_domain(model, cluster, batch, choice, optimizer)
    known = step_seconds is not None or alone.compute_source == "measured"
    calibration = calibrate(alone, constants, known)
    asked = _asked(calibration.domain, strategy or [])
    describe_domain(calibration.domain)
    _say_constants(alone.cluster, calibration)
    predictor = load_simulator(simulator, db)
    answers = answer_all(calibration, asked, engine, predictor)
    for warning in dict.fromkeys(w for answer in answers for w in answer.warnings):
        warn(warning)
    if json:
        print_json([asdict(answer) for answer in answers])
        return
    rows = [
        (
            each.strategy,
            milliseconds(each.predicted_seconds),
            f"{milliseconds(each.low_seconds)} to {milliseconds(each.high_seconds)}",
            f"{each.samples_per_second:.1f}",
            f"{each.percent_of_limit:.0f} %",
            f"{each.predicted_peak_bytes / 1e9:.2f}{'' if each.fits else ', does not fit'}",
        )
        for each in sorted(answers, key=lambda each: each.predicted_seconds)
    ]
    columns = ("strategy", "predicted ms", "between", "samples/s", "of the limit", "GB a rank")
    print_table(columns, rows, right=columns[1:])
    out.print("[dim]Predictions: nothing was run.[/]")


def _say_constants(cluster: "Cluster", calibration: "Calibration") -> None:
    """Which numbers are measured and which are assumed, on stderr."""
    kinds = ", ".join(cost.kind for cost in cluster.costs) or "none"
    say(f"Rates are those of the cluster file; startups it states: {kinds}.")
    fitted = calibration.constants
    if fitted is None:
        warn(
            "no constants were fitted on such a cluster: startups that it does not state are "
            "assumed, compute is that of one device alone, and engines cost nothing."
        )
        return
    say(
        f"Constants [bold]{fitted.name}[/]: {fitted.fitted}. Measured: {fitted.measured}. How far "
        "they carry: docs/gpu-clusters.md."
    )


def _asked(domain: "Domain", names: list[str]) -> "list[StrategyToPredict]":
    """The named strategies; all hand-designed ones when none is named."""
    from autosync.api.cli.prediction_answers import StrategyToPredict
    from autosync.search.designs.design_table import hand_designed, torch_designs
    from autosync.search.space import Space

    if not names:
        designs = [*hand_designed(domain, Space()), *torch_designs(domain, Space())]
        return [StrategyToPredict(name, design) for name, design in designs]
    return [_one(domain, name) for name in names]


def _one(domain: "Domain", name: str) -> "StrategyToPredict":
    """A hand-designed strategy, a published method or a file.

    Raises:
        InvalidInput, InvalidStrategy, NotSupported: it does not apply to this domain; says why.
        NotFound: nothing goes by that name; suggests what was probably meant.
    """
    from autosync.api.cli.arguments.domain_arguments import load_strategy, unknown_name
    from autosync.api.cli.prediction_answers import StrategyToPredict
    from autosync.search.designs.design_table import DESIGNS, TORCH_DESIGNS
    from autosync.search.designs.published_methods import METHODS, method_named
    from autosync.verification import verify

    engine, designs = "", DESIGNS | TORCH_DESIGNS
    if name.lower() in map(str.lower, METHODS):
        method = method_named(name)
        strategy, engine = method.build(domain), method.engine
    elif name in designs:
        strategy = designs[name](domain)
    elif Path(name).is_file():
        strategy = load_strategy(Path(name))
    else:
        known = [*designs, *METHODS]
        raise unknown_name("strategy", name, known, "A strategy file will do too.")
    verify(strategy, domain, allow_lossy=True, allow_inexact=True)
    return StrategyToPredict(name, strategy, engine)
