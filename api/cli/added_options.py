"""Options that are added to commands: fields of a specification, whose name, type, default and help
come from `autosync.api.spec`; and where the database or the service is."""

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo

from autosync.api.cli.options import DEFAULT_DATABASE, DatabaseUrl, ServiceUrl, number_or_fraction
from autosync.api.spec import AdvancedSpec
from autosync.errors import InvalidInput

Command = TypeVar("Command", bound=Callable[..., None])

Advanced = Annotated[
    str | None,
    typer.Option(
        metavar="JSON|FILE",
        help="How the search chooses its trials, as a JSON object or a file of one: "
        f"{', '.join(AdvancedSpec.model_fields)}. `autosync schema TuningSpec` describes them.",
        show_default=False,
    ),
]


def spec_options(spec: type[BaseModel], names: Sequence[str]) -> Callable[[Command], Command]:
    """Adds options for these fields to a command that takes them as `**asked`."""

    def decorate(command: Command) -> Command:
        set_parameters(command, command, [_option(name, spec.model_fields[name]) for name in names])
        return command

    return decorate


def uses_service(command: Callable[..., None]) -> Callable[..., Any]:
    """Adds `--db` and `--url` to a command, which is given the open connection as `at`."""

    @wraps(command)
    def run(**given: Any) -> None:
        from autosync.api.cli.connection import connected

        db, url = given.pop("db"), given.pop("url")
        with connected(db, url) as at:
            command(**given, at=at)

    keyword = inspect.Parameter.KEYWORD_ONLY
    db = inspect.Parameter("db", keyword, default=DEFAULT_DATABASE, annotation=DatabaseUrl)
    url = inspect.Parameter("url", keyword, default=None, annotation=ServiceUrl)
    set_parameters(run, command, [db, url], without="at", at_the_end=True)
    return run


def set_parameters(
    run: Callable[..., None],
    command: Callable[..., None],
    added: Sequence[inspect.Parameter],
    without: str = "",
    at_the_end: bool = False,
) -> None:
    """Gives `run` the parameters of the command with some added, behind its arguments or all."""
    signature, names = inspect.signature(command), vars(sys.modules[command.__module__])
    hints = get_type_hints(command, {**names, "Connection": object}, None, True)
    own = [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in signature.parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD and each.name != without
    ]
    arguments = [each for each in own if _is_argument(each)]
    options = [each for each in own if not _is_argument(each)]
    parameters = [*arguments, *options, *added] if at_the_end else [*arguments, *added, *options]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}


def _is_argument(parameter: inspect.Parameter) -> bool:
    stated = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(each, ArgumentInfo) for each in stated)


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """Bounds are checked by the specification, which names the value."""
    is_number = field.annotation in (float, float | None)
    option = typer.Option(
        metavar="NUMBER" if is_number else "NAME" if field.annotation is str else None,
        parser=number_or_fraction if is_number else None,
        help=(field.description or "").replace("`", ""),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=Annotated[field.annotation, option],
    )


def advanced_from(text: str | None) -> Mapping[str, Any]:
    """The fields that `--advanced` states.

    Raises:
        InvalidInput: it is neither a JSON object nor a file of one.
    """
    if text is None:
        return {}
    stated = text if text.lstrip().startswith("{") else _content(Path(text))
    try:
        found = json.loads(stated)
    except ValueError as error:
        raise _refused(text, str(error)) from None
    if not isinstance(found, dict):
        raise _refused(text, "it is no object")
    return found


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(str(file), str(error)) from None


def _refused(text: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"--advanced {text!r} cannot be read: {why}.",
        thing="--advanced",
        value=text,
        remedy="Give a JSON object, for example '{\"first_designs\": 4}', or a file of one.",
    )
