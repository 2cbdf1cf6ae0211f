"""`autosync rank`: the best strategies by prediction, without a trial."""

from typing import TYPE_CHECKING, Annotated

import typer

from autosync.api.cli.console import milliseconds, out, print_json, print_table, warn
from autosync.api.cli.options import (
    DEFAULT_DATABASE,
    SIMULATOR_HELP,
    Batch,
    ClusterName,
    DatabaseUrl,
    DeviceType,
    Efficiency,
    Json,
    Model,
    ProfileFile,
    StepSeconds,
)

if TYPE_CHECKING:
    from autosync.domain import Domain
    from autosync.search.loop.tuning_store import Candidate
    from autosync.simulator.simulator_contract import Simulator

COLUMNS = ("", "strategy", "made by", "predicted ms", "times DDP")


def rank(
    model: Model,
    cluster: ClusterName,
    proposals: Annotated[int, typer.Option(min=1, help="Strategies sampled.")] = 30_000,
    top: Annotated[int, typer.Option(min=1, max=256, help="Strategies listed.")] = 10,
    simulator: Annotated[str, typer.Option(metavar="NAME", help=SIMULATOR_HELP)] = "learned",
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.")] = 0,
    batch: Batch = None,
    device: DeviceType = None,
    efficiency: Efficiency = None,
    step_seconds: StepSeconds = None,
    profile: ProfileFile = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: Json = False,
) -> None:
    """Rank strategies by prediction alone: seconds, nothing runs.

    Samples strategies, predicts each one's iteration and lists the fastest beside the
    hand-designed ones and torch's DDP. Predictions rank; `autosync tune` measures.

    Examples:

        autosync rank resnet50 example-4x1
        autosync rank bert_base my-cluster.yaml --step-seconds 0.18
    """
    from autosync.api.cli.argument_loading import ProfileChoice, load_domain, load_simulator
    from autosync.api.cli.domain_summary import describe_domain
    from autosync.api.cli.progress import compilation_lines
    from autosync.simulator.cost.rank_servers import ONE_BY_ONE, served_one_by_one

    choice = ProfileChoice(profile, device, efficiency, step_seconds)
    domain = load_domain(model, cluster, batch, choice)
    describe_domain(domain)
    with compilation_lines():
        ranked = best_by_prediction(
            domain, load_simulator(simulator, db, domain), proposals, seed, quiet=json
        )
    ddp = next(candidate for candidate in ranked if candidate.origin == "ddp")
    if any(served_one_by_one(each.strategy, domain.cluster) for each in ranked[:top]):
        warn(ONE_BY_ONE)
    if json:
        seconds = ddp.predicted_seconds
        print_json([_data(place, c, seconds) for place, c in enumerate(ranked[:top], 1)])
    else:
        _print(domain, ranked, top, ddp)


def best_by_prediction(
    domain: "Domain", predictor: "Simulator", proposals: int, seed: int, quiet: bool = True
) -> "list[Candidate]":
    """As `prediction_ranking.best_by_prediction`, with a bar."""
    from autosync.api.cli.progress import ranking_bar
    from autosync.api.engine import prediction_ranking

    with ranking_bar(quiet) as on_event:
        return prediction_ranking.best_by_prediction(domain, predictor, proposals, seed, on_event)


def _data(place: int, candidate: "Candidate", ddp_seconds: float) -> dict[str, object]:
    from autosync.documents import to_data
    from autosync.strategy_description import describe

    return {
        "rank": place,
        "words": describe(candidate.strategy),
        "predicted_seconds": candidate.predicted_seconds,
        "predicted_speedup": ddp_seconds / candidate.predicted_seconds,
        "origin": candidate.origin,
        "strategy_id": candidate.strategy.id,
        "strategy": to_data(candidate.strategy),
    }


def _print(domain: "Domain", ranked: "list[Candidate]", top: int, ddp: "Candidate") -> None:
    from autosync.strategy_description import describe

    place = {id(candidate): str(i) for i, candidate in enumerate(ranked, 1)}
    shown = ranked[:top] + [c for c in ranked[top:] if c is ddp]
    rows = [
        (
            place[id(candidate)],
            describe(candidate.strategy, domain),
            candidate.origin,
            milliseconds(candidate.predicted_seconds),
            f"{ddp.predicted_seconds / candidate.predicted_seconds:.2f}",
        )
        for candidate in shown
    ]
    print_table(COLUMNS, rows, right=(COLUMNS[0], *COLUMNS[3:]))
    out.print("[dim]Predictions, nothing was run: `autosync tune` measures and confirms.[/]")
