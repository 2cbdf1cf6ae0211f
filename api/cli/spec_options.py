"""Options of commands that are fields of a specification: name, type, default and help come from
`autosync.api.spec`."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo

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
        signature = inspect.signature(command)
        hints = get_type_hints(command, include_extras=True)
        own = [
            each.replace(annotation=hints[each.name])
            for each in signature.parameters.values()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        added = [_option(name, spec.model_fields[name]) for name in names]
        arguments = [each for each in own if _is_argument(each)]
        parameters = [*arguments, *added, *(each for each in own if not _is_argument(each))]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _is_argument(parameter: inspect.Parameter) -> bool:
    stated = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(each, ArgumentInfo) for each in stated)


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """Bounds are checked by the specification, which names the value."""
    option = typer.Option(
        metavar="NAME" if field.annotation is str else None,
        help=(field.description or "").replace("`", ""),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
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
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(str(file), str(error)) from None


def _refused(text: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"--advanced {text!r} cannot be read: {why}.",
        thing="--advanced",
        value=text,
        remedy="Give a JSON object, for example '{\"first_designs\": 4}', or a file of one.",
    )
