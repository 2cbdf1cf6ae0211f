"""What benchmarks share: options, Markdown tables on the terminal, pictures, records, and the
published measurements that several of them read."""

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from autosync.bundled_data import data_file

T = TypeVar("T")


def option_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring as it stands."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def print_head(*columns: str) -> None:
    print_row(*columns)
    print(f"|{'---|' * len(columns)}", flush=True)


def print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def in_turn(ways: Sequence[T], number: int) -> list[T]:
    """The order of the ways in a round: each round begins with another one."""
    first = number % len(ways)
    return [*ways[first:], *ways[:first]]


def measurements(name: str) -> list[dict[str, str]]:
    """The rows of a table in datasets/measurements, by column."""
    with data_file("measurements", name).open(newline="") as file:
        return list(csv.DictReader(file))


def pyplot(salt: str) -> Any:
    """matplotlib's, for SVGs that are the same for the same figures."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = salt
    return plt


def save_svg(figure: Any, file: Path) -> None:
    figure.savefig(file, metadata={"Date": None})


def write_json(file: Path | None, content: Any) -> None:
    """Whole at every time: a benchmark may be ended in the middle."""
    if file is not None:
        written = file.with_suffix(".partly")
        written.write_text(json.dumps(content, indent=1) + "\n")
        written.replace(file)
