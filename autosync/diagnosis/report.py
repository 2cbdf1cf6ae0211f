"""A diagnosis as a document, with its page for terminals and browsers."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from autosync.diagnosis.breakdown import Breakdown, CollectiveSeconds
from autosync.diagnosis.mistakes import Mistake
from autosync.units import bytes_in_words, milliseconds

VERSION = 1

LEAST_GAIN = 1.05
"""A limit that is nearer than this to what runs leaves nothing worth a tuning."""
LEAST_PREDICTED = 1.03
"""Nor does a strategy that is predicted to be faster by less."""

PARTS = (
    ("compute", "compute"),
    ("transfer", "exposed communication"),
    ("waiting", "waiting for the slowest rank"),
    ("input", "input"),
    ("python", "Python and launches"),
)
"""Of an iteration: names in `RankSeconds`, and for readers."""

MESSAGES = "Messages of an iteration, as the profiler saw them"
MOST_LISTED = 40
"""Collectives of an iteration that the page lists."""

WRAPPED = {
    "ddp": "torch's DDP",
    "fsdp1": "FSDP1",
    "fsdp2": "FSDP2",
    "none": "no wrapper of torch's",
    "": "a trace",
}


@dataclass(frozen=True, slots=True)
class Attainable:
    """All with the input of the slowest rank. limit_seconds: of any exact strategy. tightest:
    `compute`, `compute and input`, `transfer` or `schedule`. best_seconds, ddp_seconds: predicted.
    best: the strategy's name. simulator: that predicted."""

    limit_seconds: float
    tightest: str
    best_seconds: float
    best: str
    ddp_seconds: float
    simulator: str


@dataclass(frozen=True, slots=True)
class LinkRate:
    """between: `hosts` or `ranks of a host`. gbps: measured with one large message on every link
    at once."""

    between: str
    gbps: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """hosts: 0 where traces do not name them. step_seconds: of an iteration without the profiler;
    None of traces. wrapping: `ddp`, `fsdp1`, `fsdp2`, `none`, or empty of traces. attainable: None
    where nothing is predicted, with the reason in `notes`."""

    hosts: int
    wrapping: str
    device: str
    step_seconds: float | None
    breakdown: Breakdown
    mistakes: tuple[Mistake, ...] = ()
    links: tuple[LinkRate, ...] = ()
    attainable: Attainable | None = None
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Of an iteration as it runs; under the profiler where nothing else is known."""
        return self.step_seconds or self.breakdown.iteration_seconds

    def _longest(self, *parts: str) -> float:
        """The most that a rank spends on these parts of `RankSeconds`, scaled to `seconds`."""
        most = max(sum(getattr(rank, part) for part in parts) for rank in self.breakdown.ranks)
        return float(most / self.breakdown.iteration_seconds * self.seconds)

    @property
    def input_seconds(self) -> float:
        """By so much input lengthens what the slowest rank does by itself."""
        return self._longest("compute", "python", "input") - self._longest("compute", "python")

    @property
    def limit_seconds(self) -> float:
        """No strategy iterates faster. Without a prediction: what the slowest rank takes where all
        communication is hidden; the others wait for it."""
        if self.attainable is not None:
            return self.attainable.limit_seconds
        return self._longest("compute", "python", "input")

    @property
    def gain(self) -> float:
        """How many times as fast an iteration at the limit is, 1 or more."""
        return max(1.0, self.seconds / self.limit_seconds)

    @property
    def predicted_gain(self) -> float | None:
        """How many times as fast as DDP the best strategy is predicted to be, and at most `gain`:
        DDP may be faster than predicted. None where DDP does not run, or nothing is predicted."""
        each = self.attainable
        if each is None or self.wrapping != "ddp":
            return None
        return min(each.ddp_seconds / each.best_seconds, self.gain)

    @property
    def is_worth_tuning(self) -> bool:
        predicted = self.predicted_gain
        return self.gain >= LEAST_GAIN and (predicted is None or predicted >= LEAST_PREDICTED)

    @property
    def verdict(self) -> str:
        if not self.breakdown.mean("in_flight"):
            return "No messages were recorded: are the ranks synchronized at all?"
        most, predicted = f"{self.gain:.2f} times as fast", self.predicted_gain
        what = {"ddp": "DDP", "fsdp1": "FSDP1", "fsdp2": "FSDP2"}.get(self.wrapping, "what runs")
        if self.is_worth_tuning and predicted is not None:
            return f"Worth tuning: {predicted:.2f} times as fast by prediction, at most {most}."
        if self.is_worth_tuning:
            return f"Worth tuning: up to {most}."
        if self.gain < LEAST_GAIN:
            return f"Keep {what}: at most {1 - 1 / self.gain:.0%} of an iteration can be gained."
        return (
            f"Keep {what}: the best predicted strategy gains {(predicted or 1.0) - 1:.0%}; "
            f"the limit is {most}."
        )

    def to_json(self) -> str:
        """The whole document, with the verdict and what it rests on."""
        data: dict[str, Any] = {"version": VERSION, **asdict(self)}
        data |= {"verdict": self.verdict, "gain": self.gain, "limit_seconds": self.limit_seconds}
        data["breakdown"]["bus_bytes_per_second"] = self.breakdown.bus_bytes_per_second
        return json.dumps(data, indent=2)

    def to_text(self) -> str:
        """The page for a terminal."""
        blocks = [
            [self.verdict],
            [_headline(self)],
            ["Where an iteration goes", *_part_lines(self)],
            [*_facts(self)],
            ["Mistakes", *(f"  {m.what}\n    -> {m.mend}" for m in self.mistakes)]
            if self.mistakes
            else [],
            [MESSAGES, *_message_lines(self)] if self.breakdown.collectives else [],
            [f"Note: {note}" for note in self.notes],
        ]
        return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"

    def to_html(self) -> str:
        """The same as one file without scripts or other resources."""
        rows = "".join(
            f"<tr><th>{escape(words)}</th><td>{milliseconds(seconds)}</td><td>{share:.0%}</td><td>"
            f'<span class="bar" style="width:{share * 18:.2f}em"></span></td></tr>'
            for words, seconds, share in _shares(self)
        )
        facts = "".join(f"<li>{escape(line)}</li>" for line in _facts(self))
        mistakes = "".join(
            f"<li>{escape(each.what)}<br><b>{escape(each.mend)}</b></li>" for each in self.mistakes
        )
        first, *lines = _message_table(self.breakdown.collectives)
        messages = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
            for line in lines
        )
        head = "".join(f"<th>{escape(each)}</th>" for each in first)
        more = _left_out(self.breakdown.collectives)
        return PAGE.format(
            verdict=escape(self.verdict),
            headline=escape(_headline(self)),
            rows=rows,
            facts=facts,
            mistakes=f"<h2>Mistakes</h2><ul>{mistakes}</ul>" if mistakes else "",
            messages=f"<h2>{MESSAGES}</h2><table><tr>{head}</tr>{messages}</table><p>{more}</p>"
            if messages
            else "",
            notes="".join(f"<p>{escape(note)}</p>" for note in self.notes),
        )


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>AutoSync: diagnosis</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto;
  padding: 0 1rem; }}
td, th {{ text-align: left; padding: .15rem .8rem .15rem 0; font-variant-numeric: tabular-nums; }}
th {{ font-weight: 500; }} h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.15rem; }}
.bar {{ display: inline-block; height: .8em; background: #2b6cb0; }}
</style></head><body>
<h1>{verdict}</h1><p>{headline}</p>
<h2>Where an iteration goes</h2><table>{rows}</table><ul>{facts}</ul>
{mistakes}{messages}{notes}
</body></html>
"""

MESSAGE_HEAD = ("", "operation", "bytes", "issued at", "waited for a rank", "transfer", "exposed")
OF_PARAMETERS = "gradients of"
LONGEST_NAME = 60


def _headline(diagnosis: Diagnosis) -> str:
    ranks, hosts = len(diagnosis.breakdown.ranks), diagnosis.hosts
    backend = diagnosis.breakdown.backend or "an unknown backend"
    on = f"{hosts} host{'s' * (hosts > 1)}" if hosts else "hosts without names"
    where = f"{ranks} ranks on {on}, {backend}, {diagnosis.device}"
    how = WRAPPED.get(diagnosis.wrapping, diagnosis.wrapping)
    return f"{milliseconds(diagnosis.seconds)} an iteration under {how} ({where})."


def _shares(diagnosis: Diagnosis) -> list[tuple[str, float, float]]:
    """Words, seconds and share of each part, scaled to the iteration without the profiler."""
    whole = diagnosis.breakdown.iteration_seconds
    found = []
    for part, words in PARTS:
        share = diagnosis.breakdown.mean(part) / whole if whole else 0.0
        found.append((words, share * diagnosis.seconds, share))
    return found


def _part_lines(diagnosis: Diagnosis) -> list[str]:
    return [
        f"  {words:<30}{milliseconds(seconds):>12}{share:>7.0%}  {'#' * round(share * 30)}"
        for words, seconds, share in _shares(diagnosis)
    ]


def _facts(diagnosis: Diagnosis) -> list[str]:
    found, breakdown = [], diagnosis.breakdown
    if breakdown.bus_bytes:
        rate = breakdown.bus_bytes_per_second or 0.0
        found.append(
            f"A rank sends {bytes_in_words(breakdown.bus_bytes)} an iteration, at "
            f"{rate * 8 / 1e9:.2f} Gbit/s while messages are on their way."
        )
    found += [
        f"Between {each.between}: {each.gbps:.2f} Gbit/s measured." for each in diagnosis.links
    ]
    in_flight, exposed = breakdown.mean("in_flight"), breakdown.mean("transfer")
    if in_flight:
        hidden = max(0.0, 1 - exposed / in_flight)
        found.append(f"Compute hides {hidden:.0%} of the time that messages are on their way.")
    if slowest := breakdown.slowest:
        late = slowest.late / breakdown.iteration_seconds * diagnosis.seconds
        on = f" on {slowest.host}" if slowest.host else ""
        found.append(
            f"Rank {slowest.rank}{on} is last, {milliseconds(late)} after the others: "
            f"{WHY[slowest.why]}."
        )
    elif len(breakdown.ranks) > 1:
        found.append("No rank is slower than the others." if breakdown.is_matched else UNMATCHED)
    if each := diagnosis.attainable:
        found.append(
            f"No exact strategy takes less than {milliseconds(each.limit_seconds)} here "
            f"(bound by {each.tightest})."
        )
        found.append(
            f"The best predicted one, {each.best}, takes {milliseconds(each.best_seconds)}, DDP "
            f"{milliseconds(each.ddp_seconds)} (predicted by {each.simulator}, not measured)."
        )
    return found


WHY = {
    "compute": "its compute takes longer",
    "input": "it waits longer for its input",
    "host or link": "its compute and its input are not slower, so look at its host and its link",
}
UNMATCHED = (
    "The ranks issued different messages, so time in which one waits for another counts as "
    "communication."
)


def _message_cells(each: CollectiveSeconds) -> tuple[str, ...]:
    size = bytes_in_words(each.size_bytes) if each.size_bytes else "–"
    times = (each.issued, each.waiting, each.transfer, each.exposed)
    return (str(each.place), each.operation, size, *map(milliseconds, times))


def _names_cell(each: CollectiveSeconds) -> str:
    """The first and the last of the parameters; the document has them all."""
    if len(each.parameters) < 2:
        shown = "".join(each.parameters)
    else:
        count = len(each.parameters) - 2
        between = f" ({count} more) " if count else " "
        shown = f"{each.parameters[0]}{between}to {each.parameters[-1]}"
    return shown if len(shown) <= LONGEST_NAME else shown[: LONGEST_NAME - 3] + "..."


def _message_table(collectives: Sequence[CollectiveSeconds]) -> list[tuple[str, ...]]:
    """The head and a row for each of the first; with names where any are known."""
    listed = collectives[:MOST_LISTED]
    table = [MESSAGE_HEAD, *map(_message_cells, listed)]
    if not any(each.parameters for each in listed):
        return table
    names = [OF_PARAMETERS, *map(_names_cell, listed)]
    return [(*row, name) for row, name in zip(table, names, strict=True)]


def _message_lines(diagnosis: Diagnosis) -> list[str]:
    collectives = diagnosis.breakdown.collectives
    table = _message_table(collectives)
    widths = [max(len(row[i]) for row in table) for i in range(len(MESSAGE_HEAD))]
    lines = []
    for row in table:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  " + "  ".join([*cells, *row[len(widths) :]]).rstrip())
    return [*lines, f"  {more}"] if (more := _left_out(collectives)) else lines


def _left_out(collectives: Sequence[CollectiveSeconds]) -> str:
    """`and 12 more`; empty where the page lists all."""
    left = len(collectives) - MOST_LISTED
    return f"and {left} more" if left > 0 else ""
