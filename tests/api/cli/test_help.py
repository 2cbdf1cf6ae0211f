"""`--help` of every command: options with words, examples as one can copy them."""

import inspect
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from autosync.api.cli.commands.schema import NAMES
from autosync.api.cli.main import app
from autosync.api.http.openapi import DOCUMENTS
from autosync.profiling import EFFICIENCY

WIDE = {"COLUMNS": "200"}


def commands(
    group: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    if isinstance(group, TyperGroup):
        for name, command in group.commands.items():
            yield from commands(command, (*path, name))
    elif isinstance(group, TyperCommand):
        yield path, group


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_the_schemas_that_help_names_are_those_there_are() -> None:
    assert tuple(DOCUMENTS) == NAMES


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_keep_their_lines(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env=WIDE).output
    lines = [line.strip() for line in shown.splitlines()]
    text = inspect.cleandoc(COMMANDS[path].help or "")
    for example in (line.strip() for line in text.splitlines() if line.startswith("    ")):
        assert example in lines


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_says_what_it_does(path: tuple[str, ...]) -> None:
    silent = [
        parameter.name
        for parameter in COMMANDS[path].params
        if not getattr(parameter, "help", None) and not getattr(parameter, "hidden", False)
    ]
    assert silent == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_an_example(path: tuple[str, ...]) -> None:
    assert f"autosync {' '.join(path)}" in inspect.cleandoc(COMMANDS[path].help or "")


def test_help_names_the_efficiency_that_is_assumed() -> None:
    shown = CliRunner().invoke(app, ["profile", "--help"], env=WIDE).output
    assert f"({EFFICIENCY:g})" in shown
