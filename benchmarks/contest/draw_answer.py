"""Draw what differs between torch's DDP and a domain's answer: both timelines, as simulated.

    python -m benchmarks.contest.draw_answer [--domain resnet50-4x1] [-o FILE.svg]

Two iterations from the start of a forward pass: compute of one rank above, messages below. The
title states what both measured in the contest's records; nothing is measured anew.
"""

from pathlib import Path
from typing import Any

from autosync.domain import Domain
from autosync.population import encode
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import IterationTrace, simulate_trace
from autosync.strategy import Strategy
from benchmarks.contest import RECORDS
from benchmarks.contest.contest_records import ContestFile, facts_of
from benchmarks.contest.domains import domain_named
from benchmarks.contest.tables import result_of
from benchmarks.contest.time_scales import AUTOSYNC, racers
from benchmarks.output import option_parser, pyplot, save_svg

PICTURE = Path("docs/pictures/ddp_and_answer.svg")
PHASES = {"forward": "#7aa6c2", "backward": "#3b6e8f", "update": "#c9ced3"}
"""Colours; where compute waits for messages is a gap."""
MESSAGES = "#d1495b"
MS = 1e3
SHOWN_ITERATIONS = 2


def trace_of(domain: Domain, strategy: Strategy) -> IterationTrace:
    """One iteration more than is shown, so that messages of the one before the first are there."""
    population = encode([strategy], domain)
    plans = compile_plans_fast(population, domain)
    return simulate_trace(plans, population, domain, iterations=SHOWN_ITERATIONS + 1)


def draw_trace(axes: Any, trace: IterationTrace, label: str, title: str) -> None:
    zero, end = trace.forward_seconds, trace.forward_seconds + SHOWN_ITERATIONS * trace.step_seconds
    for phase, color in PHASES.items():
        spans = [
            (MS * (max(each.start_seconds, zero) - zero), MS * clipped)
            for each in trace.compute
            if each.rank == 0 and each.phase == phase
            if (clipped := min(each.stop_seconds, end) - max(each.start_seconds, zero)) > 0.0
        ]
        axes.broken_barh(spans, (-0.35, 0.7), color=color, label=phase)
    spans = []
    landed = zero
    for message in sorted(trace.messages, key=lambda each: each.arrived_seconds):
        begin, stop = max(message.on_wire_seconds, landed), min(message.arrived_seconds, end)
        landed = max(landed, message.arrived_seconds)
        if stop > begin:
            spans.append((MS * (begin - zero), MS * (stop - begin)))
    axes.broken_barh(
        spans, (0.65, 0.7), color=MESSAGES, edgecolor="white", linewidth=0.2, label="messages"
    )
    for number in range(1, SHOWN_ITERATIONS + 1):
        axes.axvline(MS * number * trace.step_seconds, color="#555555", linewidth=0.8, ls="--")
    axes.set_yticks([0, 1], ["compute", "messages"])
    axes.set_title(f"{label}: {title}", fontsize=10, loc="left")
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--domain", default="resnet50-4x1")
    parser.add_argument("-o", "--out", type=Path, default=PICTURE)
    given = parser.parse_args()
    target, facts = domain_named(given.domain, RECORDS), facts_of(RECORDS, given.domain)
    result = result_of(ContestFile(RECORDS, given.domain), facts) if facts else None
    found = racers(RECORDS, target, facts.domain) if facts else {}
    if facts is None or result is None or not found:
        raise SystemExit(f"{RECORDS} holds no finals of {given.domain} with the answer's strategy")
    own = result.answers[AUTOSYNC, result.budget]
    plt = pyplot("autosync")
    plt.rcParams.update({"font.size": 9, "svg.fonttype": "none"})
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 3.6), sharex=True)
    for axes, role, label, seconds in (
        (upper, "ddp", "torch's DDP", result.ddp_seconds),
        (lower, AUTOSYNC, "AutoSync's answer", own.step_seconds),
    ):
        trace = trace_of(facts.domain, found[role].strategy)
        measured = f"{MS * seconds:.1f} ms an iteration measured"
        draw_trace(axes, trace, label, f"{measured}, {MS * trace.step_seconds:.1f} simulated")
    lower.set_xlabel("ms from the start of a forward pass (dashed: an iteration ends)")
    figure.suptitle(
        f"{facts.domain.graph.name} on {facts.domain.cluster.name}, links emulated on CPU cores",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    shown = {each.get_label(): each for each in upper.collections}
    figure.legend(shown.values(), shown.keys(), loc="upper right", ncols=4, frameon=False)
    figure.tight_layout()
    save_svg(figure, given.out)
    print(given.out)


if __name__ == "__main__":
    main()
