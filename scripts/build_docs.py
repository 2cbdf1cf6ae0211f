#!/usr/bin/env python3
"""Build the documentation as a site: the repository's pages, and references made from the code.

.venv/bin/python scripts/build_docs.py [-o build/site]

Pages keep their places, so that links between them are those of the repository: README.md is the
first page, docs/ and benchmarks/ are beside it. What they link to is copied with them. Links to
folders without a page become plain text. Warnings of mkdocs, as of a link or an anchor that leads
nowhere, are errors.
"""

import argparse
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STAGED = ROOT / "build" / "docs-source"
"""`docs_dir` of mkdocs.yml."""
SITE = ROOT / "build" / "site"
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
    "benchmarks",
    "datasets",
)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
METHODS = ("get", "post", "put", "patch", "delete")

PUBLIC = (
    "distribute",
    "detach",
    "tune",
    "diagnose",
    "clip_grad_norm_",
    "ShareSampler",
    "local_batch_size",
    "TrainingState",
    "Client",
)
"""Names of `autosync`, the most used first."""
PYTHON = """\
# Python

What `import autosync` offers, from the docstrings. The service's client has a
[page of its own](../client.md).
"""


def stage(folder: Path) -> None:
    """The pages, what they link to, and the references."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--", *PAGES]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    linked: set[Path] = set()
    for name in names.split("\0"):
        if name.endswith(".md") and (ROOT / name).is_file():
            write(folder / name, staged(ROOT / name, linked))
    for file in linked:
        target = folder / file.relative_to(ROOT)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    reference = folder / "docs" / "reference"
    write(reference / "python.md", python_reference())
    write(reference / "cli.md", command_reference())
    document = openapi_document()
    write(reference / "openapi.json", json.dumps(document, indent=1))
    write(reference / "rest.md", rest_reference(document))


CODE_OR_LINK = re.compile(f"(?P<code>{CODE.pattern})|(?P<link>{LINK.pattern})", re.DOTALL)


def staged(page: Path, linked: set[Path]) -> str:
    """The page's text; files that it links to join `linked`."""
    return CODE_OR_LINK.sub(lambda each: link_of(each, page, linked), page.read_text())


def link_of(match: re.Match[str], page: Path, linked: set[Path]) -> str:
    """The link as it is, of a folder to its README.md, or its words alone; code as it is."""
    if match["code"] or "://" in match[0]:
        return match[0]
    parts = LINK.fullmatch(match[0])
    assert parts is not None  # it is what matched
    image, words, target, anchor = parts.groups()
    file = (page.parent / target).resolve()
    if file.is_dir():
        if not (file / "README.md").is_file():
            return words
        return f"{image}[{words}]({target.rstrip('/')}/README.md{anchor or ''})"
    if file.is_file() and file.suffix != ".md":
        linked.add(file)
    return match[0]


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def python_reference() -> str:
    """The public names, which mkdocstrings fills in; then the errors."""
    import autosync

    def entry(name: str, heading: str) -> str:
        return f"::: {name}\n    options: {{heading: {heading}, toc_label: {heading}}}"

    public = [entry(f"{autosync._HOMES[name]}.{name}", f"autosync.{name}") for name in PUBLIC]
    return "\n\n".join([PYTHON, *public, entry("autosync.errors", "Errors")]) + "\n"


def command_reference() -> str:
    import typer

    from autosync.api.cli.main import app

    lines = ["# Commands", "", "What `autosync COMMAND --help` says.", ""]
    return "\n".join([*lines, *described(typer.main.get_command(app), "autosync")]) + "\n"


def described(command: Any, words: str) -> Iterator[str]:
    """A command's help and parameters, then its own commands."""
    commands = dict(getattr(command, "commands", {}))
    if words != "autosync":
        yield from (f"## {words}", "", inspect.cleandoc(command.help or ""), "")
    if not commands:
        yield from ("| argument or option | meaning | default |", "|---|---|---|")
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                yield parameter_row(parameter)
        yield ""
    for name in sorted(commands):
        if not commands[name].hidden:
            yield from described(commands[name], f"{words} {name}")


def parameter_row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
    else:
        name = ", ".join([*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    shown = "" if default in (None, False, ()) or callable(default) else f"`{default}`"
    meaning = " ".join((getattr(parameter, "help", None) or "").split())
    return f"| `{name}` | {cell(meaning)} | {cell(shown)} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def openapi_document() -> dict[str, Any]:
    from autosync.api.db.database import connect
    from autosync.api.engine.service_limits import ServiceLimits
    from autosync.api.http.access.access_rules import Access
    from autosync.api.http.app import application

    database = connect("sqlite:///build/docs.db")  # never opened
    return application(database, Access(), ServiceLimits()).openapi()


def rest_reference(document: Mapping[str, Any]) -> str:
    """A section for each path and method. Schemas are in openapi.json."""
    lines = [
        "# REST",
        "",
        "From the OpenAPI document ([openapi.json](openapi.json)), which holds the schemas, too. A",
        "service shows it at `/docs`, where requests can be tried.",
        "",
    ]
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                lines += operation_lines(path, method, operations[method])
    return "\n".join(lines) + "\n"


def operation_lines(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    words = operation.get("description") or operation.get("summary", "")
    yield from (f"## {method.upper()} {path}", "", inspect.cleandoc(words), "")
    if parameters := operation.get("parameters"):
        yield from ("| parameter | in | meaning |", "|---|---|---|")
        for each in parameters:
            name = f"`{each['name']}`" + (" (required)" if each.get("required") else "")
            meaning = cell(" ".join(each.get("description", "").split()))
            yield f"| {name} | {each['in']} | {meaning} |"
        yield ""
    bodies = operation.get("requestBody", {}).get("content", {})
    for kind, body in bodies.items():
        yield from (f"Body: {kind}{schema_name(body)}", "")
    answers = operation.get("responses", {})
    said = "; ".join(
        f"`{code}` {answer.get('description', '')}" for code, answer in answers.items()
    )
    yield from (f"Answers: {said}", "")


def schema_name(body: Mapping[str, Any]) -> str:
    reference = body.get("schema", {}).get("$ref", "")
    return f", `{reference.rsplit('/', 1)[-1]}`" if reference else ""


def build(site: Path) -> int:
    """The exit status of a strict build."""
    stage(STAGED)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's, at every build
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=SITE, help="where the site is written")
    given = parser.parse_args()
    status = build(given.out.resolve())
    if status == 0:
        print(f"{given.out / 'index.html'}")
    sys.exit(status)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
