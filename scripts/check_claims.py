#!/usr/bin/env python3
"""List figures that pages state without a command that prints them or without a machine, and
commands that pages name and that are not there.

.venv/bin/python scripts/check_claims.py

A figure is a percentage, milliseconds, microseconds or a ratio. Its command and its machine stand
in its section or in one around it: what a page says under its title, before the next heading,
counts for all of it. The exit status is 1 where anything is listed.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

FIGURE = re.compile(
    r"\d(?:[\d.,]*\d)?\s?(?:%|ms\b|us\b|core-seconds)|\d[\d.]* times as \w+|\d\.\d+ times"
)
MODULE = re.compile(r"python3? -m\s+((?:benchmarks|autosync)[\w.]*)([^`\n|]*)")
SCRIPT = re.compile(r"(?<![\w/.])(scripts/\w+(?:\.py)?)")
TEST = re.compile(r"(?<![\w/.])(tests/[\w/]+\.py)")
TARGET = re.compile(r"(?:`|^ {4})make ([a-z][a-z-]*)(?=`|\s|$)", re.MULTILINE)
COMMAND = re.compile(r"(?:`|^(?: {4})?|-m )autosync ((?:[a-z][a-z-]*(?: |(?=`|$)))+)", re.MULTILINE)
WRAPPED = re.compile(r"(`[^`\n]+)\n(?=[^`\n]+`)")
"""Code in a sentence that goes on in the next line."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
MACHINE = re.compile(
    r"\bcores?\b|\bCPUs?\b|EPYC|Xeon|H[12]00|published|any machine|\bsimulat(?:ed|ion)\b",
    re.IGNORECASE,
)
"""Words that say where a figure comes from. "Published" stands for measurements of others, whose
clusters their rows name; "any machine" for what does not depend on one, as simulated seconds."""
PRINTS = frozenset(
    [
        "collect",
        "collectives",
        "dataset",
        "diagnose",
        "explain",
        "import",
        "predict",
        "profile",
        "probe",
        "quickstart",
        "rank",
        "scale",
        "simulator",
        "tune",
    ]
)
"""Commands of `autosync` that print figures of the kind that pages state."""
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)

NOT_MEASURED = {
    "docs/dashboard.md#A tuning": "a threshold",
    "docs/diagnosing.md#What it says": "sentences of a page, as examples",
    "docs/diagnosing.md#Mistakes that it recognizes": "thresholds",
    "docs/faq.md#Is it worth the time?": "a threshold",
    "docs/glossary.md#How it is found": "a threshold",
    "docs/glossary.md#How it is predicted": "a definition",
    "docs/interop.md#Clusters": "a rule",
    "docs/interop.md#Clusters from lists of hosts": "rules",
    "docs/proposals.md#The space": "a setting",
    "docs/proposals.md#Strategies that are computed": "a setting of Horovod's",
    "docs/search.md#Where proposals come from": "assumptions",
    "docs/search.md#When it ends, and what is confirmed": "thresholds",
    "docs/synchronizers/priority-and-slices.md#Priority and slices": "values of a formula",
    "docs/synchronizers/reduce-scatter.md#Reduce-scatter and all-gather": "values of a formula",
    "docs/training.md#When iterations become longer": "thresholds, and a message as an example",
    "docs/trials.md#What runs": "a setting",
    "docs/trials.md#The procedure": "thresholds",
    "docs/trials.md#Collecting a dataset": "a threshold",
    "datasets/measurements/README.md#Measurements on real GPU clusters": "what counts as a tie",
}
"""Sections whose numbers are settings, thresholds or definitions: by page and heading, and why."""


@dataclass(frozen=True, slots=True)
class Section:
    """text: its own lines. context: these and those of the sections around it."""

    heading: str
    text: str
    context: str


def sections(page: str) -> Iterator[Section]:
    """Of a Markdown page, each up to the next heading. The first one has no heading, and its text
    is in every context, as is what stands under a page's only heading of the first level."""
    marks = list(HEADING.finditer(without_python(page)))
    page = without_python(page)
    around: list[tuple[int, str]] = []
    begin = 0
    level, heading = 0, ""
    for mark in [*marks, None]:
        text = page[begin : mark.start() if mark else len(page)]
        around = [(depth, words) for depth, words in around if depth < level] + [(level, text)]
        yield Section(heading, text, "\n".join(words for _, words in around))
        if mark is not None:
            begin, level, heading = mark.end(), len(mark[1]), mark[2].strip()


def without_python(page: str) -> str:
    """Blocks of Python and YAML have comments that look like headings, and no claims."""
    return re.sub(r"```(?:python|yaml)\n.*?```", "", page, flags=re.DOTALL)


def unfounded(name: str, page: str) -> Iterator[str]:
    """Sections with figures that lack a command or a machine."""
    for section in sections(page):
        figures = FIGURE.findall(section.text)
        if not figures or f"{name}#{section.heading}" in NOT_MEASURED:
            continue
        lacks = []
        if not names_command(section.context):
            lacks.append("the command that prints them")
        if not MACHINE.search(section.context):
            lacks.append("the machine")
        if lacks:
            shown = ", ".join(figures[:3]) + (", ..." if len(figures) > 3 else "")
            yield f"{name}: {section.heading or 'beginning'}: {shown}: name {' and '.join(lacks)}"


def names_command(text: str) -> bool:
    if any(each.search(text) for each in (MODULE, SCRIPT, TEST)):
        return True
    return any(words.split()[0] in PRINTS for words in COMMAND.findall(text))


def missing_commands(name: str, page: str) -> Iterator[str]:
    """Modules, scripts, tests, targets and commands that a page names and that do not exist; also
    options that a benchmark's source does not hold."""
    for module, words in MODULE.findall(WRAPPED.sub(r"\1 ", page)):
        if module != "autosync":
            source = source_of(module)
            if source is None:
                yield f"{name}: python -m {module}: no such module"
                continue
            known = source.read_text()
            for option in OPTION.findall(words):
                if f'"{option}"' not in known:
                    yield f"{name}: python -m {module}: no option {option}"
    for file in {*SCRIPT.findall(page), *TEST.findall(page)}:
        if not (ROOT / file).is_file():
            yield f"{name}: {file}: no such file"
    for target in set(TARGET.findall(page)) - make_targets():
        yield f"{name}: make {target}: no such target"
    for words in COMMAND.findall(page):
        if unknown := unknown_command(words.split()):
            yield f"{name}: autosync {unknown}: no such command"


def source_of(module: str) -> Path | None:
    """The file that `python -m MODULE` runs."""
    path = ROOT / module.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__main__.py")
    return next((file for file in files if file.is_file()), None)


@cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def unknown_command(words: Sequence[str]) -> str:
    """The words up to the first that is no command, or nothing. Words behind a command that has no
    commands of its own are its arguments."""
    group = _commands(_command_line())
    for number, word in enumerate(words):
        if not group:
            break
        if word not in group:
            return " ".join(words[: number + 1])
        group = _commands(group[word])
    return ""


@cache
def _command_line() -> object:
    import typer  # the command line takes seconds to import

    from autosync.api.cli.main import app

    return typer.main.get_command(app)


def _commands(command: object) -> dict[str, object]:
    return dict(getattr(command, "commands", {}))


def pages() -> dict[str, str]:
    """The repository's own pages by their path. Changes of a version are not checked: they tell of
    commands as they were."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    kept = (each for each in listed if each and "vendor" not in each and each != "CHANGELOG.md")
    return {each: (ROOT / each).read_text() for each in kept}


def problems(texts: dict[str, str]) -> list[str]:
    found = [line for name, page in texts.items() for line in missing_commands(name, page)]
    found += [line for name, page in texts.items() for line in unfounded(name, page)]
    with_figures = {
        f"{name}#{section.heading}"
        for name, page in texts.items()
        for section in sections(page)
        if FIGURE.search(section.text)
    }
    unused = [each for each in NOT_MEASURED if each not in with_figures]
    return found + [
        f"scripts/check_claims.py: {each}: no such section with figures" for each in unused
    ]


def main() -> None:
    found = problems(pages())
    print("\n".join(found) or "every figure names a command that exists, and a machine")
    sys.exit(bool(found))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
