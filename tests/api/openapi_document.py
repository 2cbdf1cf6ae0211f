"""The OpenAPI document, which every application builds as it starts, is built once for all of a
test process: it takes half a second, and depends on nothing but the path before all others. So are
routes and templates, for the services that are forked from it."""

from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

from autosync.api.db import connect
from autosync.api.http import openapi
from autosync.api.http.app import create_app
from autosync.api.http.page_templates import compile_templates

_built: dict[str, dict[str, Any]] = {}
_build = openapi._build


def _build_once(app: Any, scopes: Any, root_path: str) -> dict[str, Any]:
    if root_path not in _built:
        _built[root_path] = _build(app, scopes, root_path)
    return _built[root_path]


@cache
def built_once() -> None:
    """For this process and those forked from it."""
    openapi._build = _build_once
    with TemporaryDirectory() as folder:
        database = connect(f"sqlite:///{folder}/empty.db")
        create_app(database).openapi()
        database.close()
    compile_templates("")
