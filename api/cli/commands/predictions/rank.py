"""`autosync rank`: the best strategies by prediction, without a trial; those that hardly differ
share a row, in which what differs in their words is a range."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.commands.predictions.job_options import GivenJob, predicts_job
from autosync.api.cli.console import between_ms, number_of_ms, out, print_json, print_table, warn
from autosync.api.cli.options import SimulatorName, SpaceOption
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.api.views.schemas import PredictedStrategy

PROPOSALS = 16_384
"""Their first place is at most 0.08 % slower than that of 30,000, on four domains by three seeds
(`benchmarks.search.rank_quality`); seeds of 30,000 are up to 0.4 % apart."""
MOST_ROWS = 256
COLUMNS = ("", "alike", "strategy", "made by", "predicted ms", "times DDP", "bound by", "GB a rank")


@predicts_job
def rank(
    job: GivenJob,
    proposals: Annotated[
        int,
        typer.Option(
            min=1, help="Strategies sampled; the 30000 of a tuning take longer and gain little."
        ),
    ] = PROPOSALS,
    top: Annotated[
        int,
        typer.Option(min=1, max=MOST_ROWS, help="Rows; strategies that hardly differ share one."),
    ] = 10,
    simulator: SimulatorName = "learned",
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.")] = 0,
    space: SpaceOption = None,
    placement: Annotated[
        bool,
        typer.Option(
            help="Also strategies whose modules live on ranks of their own; over gloo alone."
        ),
    ] = False,
) -> None:
    """Rank strategies by prediction alone: seconds, nothing runs.

    Samples strategies, predicts each one's iteration and lists the fastest beside the
    hand-designed ones and torch's DDP. Predictions rank; `autosync tune` measures.

    Examples:

        autosync rank resnet50 example-4x1
        autosync rank bert_base my-cluster.yaml --step-seconds 0.18
        autosync rank vgg16 my-cluster.yaml --placement
        autosync rank gpt2_medium my-cluster.yaml --space fsdp2
    """
    from autosync.api.cli.domain_arguments import warn_of_memory
    from autosync.api.cli.progress import compilation_lines, working

    if space and placement:
        raise InvalidInput(
            f"--space {space} has no strategies of placed modules.",
            thing="--placement",
            value=space,
            remedy="Give one of --space and --placement.",
        )
    domain = job.domain
    with compilation_lines(), working("ranking"):
        answer = job.client.rank(
            domain.graph,
            domain.cluster,
            space=space or {"placement": placement},
            proposals=proposals,
            seed=seed,
            simulator=simulator,
            top=MOST_ROWS,
            **job.arguments,
        )
    ranked = answer.items
    ddp = next(each for each in ranked if each.origin == "ddp")
    for warning in dict.fromkeys(answer.warnings):
        warn(escape(warning))
    warn_of_memory(domain, ddp.predicted_peak_bytes)
    if job.json:
        print_json([each.model_dump(mode="json") for each in ranked[:top]])
    else:
        _print(ranked, top, ddp)


def _print(ranked: "list[PredictedStrategy]", top: int, ddp: "PredictedStrategy") -> None:
    """A row for strategies that hardly differ; DDP's own is always among them."""
    groups = grouped(ranked)
    shown = groups[:top] + [group for group in groups[top:] if group.is_ddp]
    rows = [
        (
            str(group.place),
            str(len(group.members)) if len(group.members) > 1 else "",
            escape(group.words),
            escape(group.made_by),
            _between(*map(number_of_ms, group.predicted_seconds)),
            _between(*(f"{ddp.predicted_seconds / each:.2f}" for each in group.predicted_seconds)),
            ranked[group.place - 1].binding,
            f"{ranked[group.place - 1].predicted_peak_bytes / 1e9:.2f}",
        )
        for group in shown
    ]
    print_table(COLUMNS, rows, right=(COLUMNS[0], COLUMNS[1], *COLUMNS[4:6], COLUMNS[7]))
    first = ranked[0]
    ends = between_ms(first.low_seconds, first.high_seconds)
    out.print(f"[dim]Nine of ten measurements of the first are expected at {ends} ms.[/]")
    out.print("[dim]Predictions, nothing was run: `autosync tune` measures and confirms.[/]")


def _between(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


NEAR = 0.01
"""Predictions that differ by less tell nothing: so well do trials repeat (1 %, the median of quiet
trials on the testbed)."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(slots=True)
class AlikeStrategies:
    """Strategies whose words differ in numbers alone and whose predictions are near; fastest
    first."""

    members: "list[PredictedStrategy]" = field(default_factory=list)

    @property
    def place(self) -> int:
        return self.members[0].rank

    @property
    def predicted_seconds(self) -> tuple[float, float]:
        """Of the fastest and of the slowest."""
        return self.members[0].predicted_seconds, self.members[-1].predicted_seconds

    @property
    def words(self) -> str:
        """Those of all members; a number that differs stands as `2 to 6`."""
        numbers = zip(*(NUMBER.findall(each.words) for each in self.members), strict=True)
        ranges = iter([_range(column) for column in numbers])
        return NUMBER.sub(lambda found: next(ranges), self.members[0].words)

    @property
    def made_by(self) -> str:
        return ", ".join(dict.fromkeys(each.origin for each in self.members))

    @property
    def is_ddp(self) -> bool:
        return any(each.origin == "ddp" for each in self.members)


def grouped(ranked: "Sequence[PredictedStrategy]") -> list[AlikeStrategies]:
    """Every strategy in one group, the groups by their fastest. ranked: fastest first."""
    groups: list[AlikeStrategies] = []
    last: dict[str, AlikeStrategies] = {}
    for each in ranked:
        kind = NUMBER.sub("#", each.words)
        group = last.get(kind)
        if group is None or each.predicted_seconds > (1 + NEAR) * group.predicted_seconds[0]:
            group = last[kind] = AlikeStrategies()
            groups.append(group)
        group.members.append(each)
    return groups


def _range(numbers: Sequence[str]) -> str:
    """`2 to 6`, each as it was written; one number where all are alike."""
    ordered = sorted(set(numbers), key=float)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
