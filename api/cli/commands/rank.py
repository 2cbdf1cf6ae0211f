"""`autosync rank`: the best strategies by prediction, without a trial."""

import gc
from typing import TYPE_CHECKING, Annotated

import typer

from autosync.api.cli.console import milliseconds, out, print_json, print_table, warn
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
    from autosync.domain import Domain
    from autosync.search.loop.tuning_store import Candidate
    from autosync.search.space import Space
    from autosync.simulator.simulator_contract import Simulator

PROPOSALS = 16_384
"""Their first place is at most 0.08 % slower than that of 30,000, on four domains by three seeds
(`benchmarks.search.rank_quality`); seeds of 30,000 are up to 0.4 % apart."""
GARBAGE_OBJECTS = 100_000
"""Made before Python looks for circles among them: by default 700, ever again in the imports and
strategies of a ranking, which are all needed to its end."""
COLUMNS = ("", "alike", "strategy", "made by", "predicted ms", "times DDP", "GB a rank")


def rank(
    model: Model,
    cluster: ClusterName,
    proposals: Annotated[
        int,
        typer.Option(
            min=1, help="Strategies sampled; the 30000 of a tuning take longer and gain little."
        ),
    ] = PROPOSALS,
    top: Annotated[
        int,
        typer.Option(min=1, max=256, help="Rows listed; strategies that hardly differ share one."),
    ] = 10,
    simulator: SimulatorName = "learned",
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.")] = 0,
    placement: Annotated[
        bool,
        typer.Option(help="Also strategies whose modules live on ranks of their own."),
    ] = False,
    batch: Batch = None,
    optimizer: Optimizer = None,
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
        autosync rank vgg16 my-cluster.yaml --placement
    """
    from autosync.api.cli.arguments.domain_arguments import (
        ProfileChoice,
        load_domain,
        load_simulator,
    )
    from autosync.api.cli.domain_summary import describe_domain, warn_of_memory
    from autosync.api.cli.progress import compilation_lines
    from autosync.api.engine.prediction_ranking import one_blas_thread
    from autosync.search.space import Space
    from autosync.simulator.backends import backend_of

    gc.set_threshold(GARBAGE_OBJECTS)
    choice = ProfileChoice(profile, device, efficiency, step_seconds)
    domain = load_domain(model, cluster, batch, choice, optimizer)
    describe_domain(domain)
    with compilation_lines(), one_blas_thread():
        predictor = load_simulator(simulator, db)
        space = Space(placement=placement)
        ranked = best_by_prediction(domain, predictor, proposals, seed, space, quiet=json)
    ddp = next(candidate for candidate in ranked if candidate.origin == "ddp")
    backend = backend_of(domain.cluster)
    caveats = [backend.caveat(each.strategy, domain.cluster) for each in ranked[:top]]
    for caveat in dict.fromkeys(filter(None, caveats)):
        warn(caveat)
    warn_of_memory(domain, peak_bytes_of(domain, [ddp])[0])
    if json:
        seconds = ddp.predicted_seconds
        both = zip(ranked[:top], peak_bytes_of(domain, ranked[:top]), strict=True)
        print_json([_data(place, c, seconds, peak) for place, (c, peak) in enumerate(both, 1)])
    else:
        _print(domain, ranked, top, ddp)


def best_by_prediction(
    domain: "Domain",
    predictor: "Simulator",
    proposals: int,
    seed: int,
    space: "Space",
    quiet: bool = True,
) -> "list[Candidate]":
    """As `prediction_ranking.best_by_prediction`, with a bar."""
    from autosync.api.cli.progress import ranking_bar
    from autosync.api.engine import prediction_ranking

    with ranking_bar(quiet) as on_event:
        return prediction_ranking.best_by_prediction(
            domain, predictor, proposals, seed, on_event, space
        )


def peak_bytes_of(domain: "Domain", candidates: "list[Candidate]") -> list[float]:
    """Predicted peak of each, of the rank that needs most."""
    from autosync.simulator.memory.memory_check import most_peak_bytes

    return most_peak_bytes(domain, [each.strategy for each in candidates])


def _data(
    place: int, candidate: "Candidate", ddp_seconds: float, peak_bytes: float
) -> dict[str, object]:
    from autosync.documents import to_data
    from autosync.strategy_description import describe

    return {
        "rank": place,
        "words": describe(candidate.strategy),
        "predicted_seconds": candidate.predicted_seconds,
        "predicted_speedup": ddp_seconds / candidate.predicted_seconds,
        "predicted_peak_bytes": int(peak_bytes),
        "origin": candidate.origin,
        "strategy_id": candidate.strategy.id,
        "strategy": to_data(candidate.strategy),
    }


def _print(domain: "Domain", ranked: "list[Candidate]", top: int, ddp: "Candidate") -> None:
    """A row for strategies that hardly differ; DDP's own is always among them."""
    from autosync.api.cli.alike_strategies import RankedWords, grouped
    from autosync.strategy_description import describe

    groups = grouped(
        [
            RankedWords(
                place,
                describe(each.strategy, domain),
                each.origin,
                each.predicted_seconds,
                each is ddp,
            )
            for place, each in enumerate(ranked, 1)
        ]
    )
    shown = groups[:top] + [group for group in groups[top:] if group.is_ddp]
    peaks = peak_bytes_of(domain, [ranked[group.place - 1] for group in shown])
    rows = [
        (
            str(group.place),
            str(len(group.members)) if len(group.members) > 1 else "",
            group.words,
            group.made_by,
            _between(*map(milliseconds, group.predicted_seconds)),
            _between(*(f"{ddp.predicted_seconds / each:.2f}" for each in group.predicted_seconds)),
            f"{peak / 1e9:.2f}",
        )
        for group, peak in zip(shown, peaks, strict=True)
    ]
    print_table(COLUMNS, rows, right=(COLUMNS[0], COLUMNS[1], *COLUMNS[4:]))
    out.print("[dim]Predictions, nothing was run: `autosync tune` measures and confirms.[/]")


def _between(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"
