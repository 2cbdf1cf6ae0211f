"""A parser of outside data, what it is fed, and how one input is tried."""

import resource
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from autosync.errors import LONGEST_MESSAGE, AutosyncError

Form = Literal["bytes", "json", "lines", "protobuf", "safetensors"]
Outcome = Literal["read", "refused", "finding"]

MOST_SECONDS = 3.0
"""Of the processor for one input; the largest is 200 kB."""
MOST_GROWTH_KIB = 400 * 1024
"""Of the process' peak memory, by one input."""


@dataclass(frozen=True, slots=True)
class FuzzedParser:
    """parse: reads the bytes and uses what it read as its callers do; raises AutosyncError, or is
    at fault. warm_up: what it loads and compiles belongs to no input."""

    name: str
    form: Form
    seeds: Sequence[bytes]
    parse: Callable[[bytes], object]
    share: float = 1.0
    """Of the inputs that others get: where one takes long."""


@dataclass(frozen=True, slots=True)
class Tried:
    """where: of a finding, its kind and the line at fault, equal for equal findings."""

    outcome: Outcome
    seconds: float
    where: str = ""


class TooLong(BaseException):
    """No parser catches it."""


def try_input(parser: FuzzedParser, data: bytes, most_seconds: float = MOST_SECONDS) -> Tried:
    """Read, refused, or a finding: another exception, too much time or memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, most_seconds)
    where = ""
    outcome: Outcome = "read"
    try:
        parser.parse(data)
    except AutosyncError as error:
        outcome, where = "refused", _wrong_refusal(error)
    except RecursionError as error:
        where = f"RecursionError, {_line(error)}"
    except Exception as error:
        where = f"{type(error).__name__}: {str(error)[:60]}, {_line(error)}"
    except TooLong as error:
        where = f"more than {most_seconds} s, {_line(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - begin
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if not where and seconds > most_seconds:
        where = f"more than {most_seconds} s in one call"
    if not where and grown > MOST_GROWTH_KIB:
        where = f"more than {MOST_GROWTH_KIB >> 10} MiB"
    return Tried("finding" if where else outcome, seconds, where)


def _wrong_refusal(error: AutosyncError) -> str:
    """What is wrong with a refusal itself; empty where nothing is."""
    if not error.message.strip():
        return f"a refusal without words, {_line(error)}"
    if len(str(error)) > 2 * LONGEST_MESSAGE:
        return f"a refusal of {len(str(error))} characters, {_line(error)}"
    return ""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _line(error: BaseException) -> str:
    """The innermost line of this project's own."""
    here = str(Path(__file__).parents[2])
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(here) and "/.venv/" not in f.filename]
    own = [f for f in own if "/benchmarks/fuzz/fuzzed_parser" not in f.filename] or own
    if not own:
        return "nowhere"
    return f"{Path(own[-1].filename).relative_to(here)}:{own[-1].lineno}"


def warm_up(parser: FuzzedParser) -> None:
    """Every seed must be read: a parser that refuses its own is tried in vain.

    Raises:
        AutosyncError: a seed is refused.
    """
    for seed in parser.seeds:
        parser.parse(seed)


def used(*values: Any) -> None:
    """Says that computing them was the use."""
