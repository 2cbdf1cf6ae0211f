"""One parser searched by coverage: atheris keeps the inputs that reach new lines, and changes them
as `mutations` does.

    pip install 'autosync[fuzz]'
    python -m benchmarks.fuzz.coverage_guided onnx --inputs 100000 -o findings

It ends at the first finding, whose input it writes to the folder. Slower than `fuzz_parsers`, since
every line is counted; it gets further into what refuses most of what is drawn blindly.
"""

import argparse
import os
import random
import sys
from pathlib import Path

import atheris

os.environ["NUMBA_DISABLE_JIT"] = "1"  # it cannot compile what is instrumented
READERS = (
    "interop",
    "importing",
    "graph",
    "documents",
    "cluster_file",
    "bundle",
    "strategy",
    "api",
)
"""Of autosync, what reads."""

with atheris.instrument_imports(include=[f"autosync.{name}" for name in READERS]):
    from benchmarks.fuzz.fuzz_parsers import all_parsers
    from benchmarks.fuzz.fuzzed_parser import try_input, warm_up
    from benchmarks.fuzz.mutations import MOST_BYTES, changed


class FoundError(Exception):
    """What ends the search: the line at fault."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    arguments.add_argument("parser")
    arguments.add_argument("--inputs", type=int, default=20_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("-o", "--output", type=Path, default=Path("findings"))
    given = arguments.parse_args()
    parser = next((each for each in all_parsers() if each.name == given.parser), None)
    if parser is None:
        sys.exit(f"no parser is called {given.parser!r}: `benchmarks.fuzz.fuzz_parsers` lists them")
    warm_up(parser)
    corpus = given.output / f"{parser.name}-corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(parser.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    def one_input(data: bytes) -> None:
        tried = try_input(parser, data)
        if tried.outcome == "finding":
            raise FoundError(tried.where)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        return changed(parser.form, [data, *parser.seeds], random.Random(seed))[:most]

    options = (
        f"-runs={given.inputs}",
        f"-seed={given.seed}",
        f"-max_len={MOST_BYTES}",
        f"-artifact_prefix={given.output}/{parser.name}-",
    )
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
