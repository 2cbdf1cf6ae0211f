"""Valid inputs of every parser of outside data, changed at random: each is read or refused, within
bounds of time and memory, or it is a finding.

    python -m benchmarks.fuzz.fuzz_parsers                        # 2,000 inputs a parser
    python -m benchmarks.fuzz.fuzz_parsers --inputs 100000 --parsers graph,onnx -o findings
    python -m benchmarks.fuzz.fuzz_parsers --parsers onnx --again 4711    # one input once more

An input follows from the parser's name, the seed and its number. Every parser runs in a process of
its own, whose end is a finding, too.
"""

import mmap
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from autosync.units import MIB
from benchmarks.fuzz.document_parsers import document_parsers
from benchmarks.fuzz.file_parsers import file_parsers
from benchmarks.fuzz.fuzzed_parser import FuzzedParser, Tried, try_input, warm_up
from benchmarks.fuzz.mutations import changed
from benchmarks.fuzz.service_parsers import service_parsers
from benchmarks.output import option_parser

INPUTS = 2000
MOST_MIB = 2048
"""Of a process' data, beyond what it starts with: an input that takes more ends it."""
PATIENCE_SECONDS = 120.0
"""Without a step on, a process is ended: what runs in C hears no signal."""
COLUMNS = f"{'parser':24} {'inputs':>8} {'a second':>9} {'read':>7} {'refused':>8} {'slowest':>9}"


@dataclass(slots=True)
class Counts:
    """findings: number of the first input by where it went wrong."""

    inputs: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, int] = field(default_factory=dict)

    def add(self, number: int, tried: Tried) -> None:
        self.inputs += 1
        self.seconds += tried.seconds
        self.slowest_seconds = max(self.slowest_seconds, tried.seconds)
        self.outcomes[tried.outcome] += 1
        if tried.outcome == "finding":
            self.findings.setdefault(tried.where, number)

    def line(self, name: str) -> str:
        a_second = self.inputs / self.seconds if self.seconds else 0.0
        return (
            f"{name:24} {self.inputs:8,} {a_second:9,.0f} {self.outcomes['read']:7,} "
            f"{self.outcomes['refused']:8,} {self.slowest_seconds * 1e3:6.0f} ms"
        )


def all_parsers() -> list[FuzzedParser]:
    return [*document_parsers(), *file_parsers(), *service_parsers()]


def input_of(parser: FuzzedParser, seed: int, number: int) -> bytes:
    rng = random.Random(f"{parser.name}/{seed}/{number}")
    return changed(parser.form, parser.seeds, rng)


def fuzz(parser: FuzzedParser, seed: int, inputs: int, step: "mmap.mmap | None" = None) -> Counts:
    """In this process. step: where the number of the input at hand is told."""
    counts = Counts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warm_up(parser)
        for number in range(inputs):
            if step is not None:
                step[:8] = number.to_bytes(8, "little")
            counts.add(number, try_input(parser, input_of(parser, seed, number)))
    return counts


def fuzz_in_process(parser: FuzzedParser, seed: int, inputs: int, out: Path | None) -> bool:
    """Prints a line and the findings; whether there were none."""
    step = mmap.mmap(-1, 8)
    child = os.fork()
    if not child:
        os._exit(_in_child(parser, seed, inputs, step, out))
    status = _wait(child, step)
    if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) > 1:
        number = int.from_bytes(step[:8], "little")
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "an error"
        print(f"{parser.name:24} ENDED BY {how} at input {number}", flush=True)
        _keep(parser, seed, number, out)
        return False
    return os.WEXITSTATUS(status) == 0


def _in_child(
    parser: FuzzedParser, seed: int, inputs: int, step: mmap.mmap, out: Path | None
) -> int:
    try:
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        most = used + MOST_MIB * MIB
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        counts = fuzz(parser, seed, inputs, step)
        print(counts.line(parser.name), flush=True)
        for where, number in counts.findings.items():
            print(f"    input {number}: {where}", flush=True)
            _keep(parser, seed, number, out)
        return 1 if counts.findings else 0
    except BaseException as error:
        print(f"{parser.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 2


def _keep(parser: FuzzedParser, seed: int, number: int, out: Path | None) -> None:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{parser.name}-{seed}-{number}").write_bytes(input_of(parser, seed, number))


def _wait(child: int, step: mmap.mmap) -> int:
    """The child's status; killed where it stands still."""
    seen, since = b"", time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if step[:8] != seen:
            seen, since = step[:8], time.monotonic()
        elif time.monotonic() - since > PATIENCE_SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)


def main() -> int:
    arguments = option_parser(__doc__)
    arguments.add_argument("--inputs", type=int, default=INPUTS, help="of each parser")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--parsers", default="", help="names, joined by commas; else all")
    arguments.add_argument("--again", type=int, help="try this input alone, and show its error")
    arguments.add_argument("-o", "--output", type=Path, help="folder for what was found")
    given = arguments.parse_args()
    parsers = all_parsers()
    wanted = given.parsers.split(",") if given.parsers else [each.name for each in parsers]
    if unknown := set(wanted) - {each.name for each in parsers}:
        print(f"no parser is called {min(unknown)!r}: {', '.join(each.name for each in parsers)}")
        return 2
    chosen = [each for each in parsers if each.name in wanted]
    if given.again is not None:
        for parser in chosen:
            data = input_of(parser, given.seed, given.again)
            print(parser.name, data[:2000])
            parser.parse(data)
        return 0
    print(COLUMNS, flush=True)
    sound = [
        fuzz_in_process(each, given.seed, max(1, round(given.inputs * each.share)), given.output)
        for each in chosen
    ]
    print(f"{sound.count(False)} of {len(sound)} parsers with findings")
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
