"""Changed inputs of every parser; `benchmarks.fuzz` tries as many as one likes."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autosync.errors import InvalidInput
from benchmarks.fuzz.document_parsers import FOLDER, document_parsers
from benchmarks.fuzz.file_parsers import file_parsers
from benchmarks.fuzz.fuzz_parsers import fuzz, fuzz_in_process, input_of
from benchmarks.fuzz.fuzzed_parser import FuzzedParser, try_input
from benchmarks.fuzz.mutations import FORMS, changed
from benchmarks.fuzz.service_parsers import service_parsers
from tests.autosync.interop.test_graph_items import Written

SEED = 20
SEEDS = {
    "bytes": b"gpu[01-04],login",
    "json": b'{"name": "a", "nodes": [{"rate": 1.5, "count": 3}], "note": null}',
    "lines": b"name: a\nnodes:\n  - {rate: 1.5, count: 3}\n",
    "protobuf": Written().bytes(),
    "safetensors": b"\x08\0\0\0\0\0\0\0" + b'{"a": 1}' + b"1234",
}


@pytest.fixture(scope="module", autouse=True)
def files_removed() -> Iterator[None]:
    """A worker of xdist ends without what would remove them at exit."""
    yield
    FOLDER.cleanup()


@pytest.mark.parametrize("inputs", [20, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("parsers", [document_parsers, file_parsers, service_parsers])
def test_changed_inputs_are_read_or_refused(
    parsers: Callable[[], list[FuzzedParser]], inputs: int
) -> None:
    found: list[str] = []
    for parser in parsers():
        counts = fuzz(parser, SEED, max(4, round(inputs * parser.share)))
        assert counts.outcomes["read"] + counts.outcomes["refused"] > 0
        found += [f"{parser.name} --again {n}: {where}" for where, n in counts.findings.items()]
    assert not found, f"python -m benchmarks.fuzz.fuzz_parsers --seed {SEED} --parsers {found}"


@pytest.mark.parametrize("form", FORMS)
def test_an_input_follows_from_its_number(form: str) -> None:
    made, again = (
        [changed(form, [SEEDS[form]], random.Random(number)) for number in range(60)]
        for _ in range(2)
    )
    assert made == again
    assert len(set(made)) > 30


def parse_badly(data: bytes) -> None:
    if data.startswith(b"refuse"):
        raise InvalidInput("no.", thing="input", value=data)
    if data.startswith(b"index"):
        raise IndexError("out of range")
    if data.startswith(b"silent"):
        raise InvalidInput("")
    while data.startswith(b"endless"):
        pass


@pytest.mark.parametrize(
    ("data", "outcome", "where"),
    [
        (b"fine", "read", ""),
        (b"refuse", "refused", ""),
        (b"index", "finding", "IndexError: out of range"),
        (b"silent", "finding", "without words"),
        (b"endless", "finding", "more than 0.2 s"),
    ],
)
def test_outcomes_that_count_as_findings(data: bytes, outcome: str, where: str) -> None:
    parser = FuzzedParser("bad", "bytes", [b"fine"], parse_badly)
    tried = try_input(parser, data, most_seconds=0.2)
    assert tried.outcome == outcome
    assert where in tried.where


def parse_one_only(data: bytes) -> None:
    if data != b"index":
        raise IndexError("out of range")


def test_findings_are_told_with_the_input_that_shows_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = FuzzedParser("bad", "bytes", [b"index"], parse_one_only)
    assert not fuzz_in_process(broken, 0, 40, tmp_path)
    assert "IndexError" in capfd.readouterr().out
    (kept,) = tmp_path.iterdir()
    number = int(kept.name.rpartition("-")[2])
    assert kept.read_bytes() == input_of(broken, 0, number)
