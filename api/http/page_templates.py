"""The dashboard's templates, and how they write numbers and moments."""

from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.templating import Jinja2Templates

from autosync.api.http.access.browser import (
    FORM_FIELD,
    FORM_HEADER,
    form_key,
    form_token,
    local_address,
    new_cookie,
    parsed_url,
    send_form_key,
)
from autosync.api.http.root_path import RootPathAddresses
from autosync.api.views.glossary import meanings
from autosync.api.views.prediction_errors import FEWEST_MEASURED
from autosync.api.views.rankings import RankingFilter
from autosync.api.views.reports import TuningFilter
from autosync.api.views.tuning_schemas import SETTLED_SPREAD
from autosync.environment import own_version
from autosync.strategy_description import method
from autosync.units import (
    bytes_in_words,
    counted,
    fraction_in_words,
    milliseconds,
    milliseconds_between,
    number_in_words,
    percent_in_words,
    scales_in_words,
)

TEMPLATES = Path(__file__).parent / "templates"


def show(request: Request, name: str, context: dict[str, Any], status: int = 200) -> Response:
    """The template, filled in. A browser that has no cookie yet gets one, for the forms."""
    access = request.app.state.access
    known = form_key(request, access)
    key = known or new_cookie()
    caller = getattr(request.state, "caller", None)
    shared = {"caller": caller, "form_token": form_token(key)}
    templates = _templates(request.app.state.root_path)
    response = templates.TemplateResponse(request, name, {**context, **shared}, status_code=status)
    if known is None:
        send_form_key(request, access, response, key)
    return response


def compile_templates(root_path: str) -> None:
    """All of them, which takes a tenth of a second; later ones find them compiled."""
    environment = _templates(root_path).env
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)


def error_page(request: Request, problem: dict[str, Any]) -> Response:
    """A refusal, for someone who looks at the dashboard with a browser; where a key is missing with
    the way to the log in, and from there back to the page that sent a form."""
    here = parsed_url(request.headers.get("referer", ""))
    path = here.path.removeprefix(request.app.state.root_path)
    address = path + (f"?{here.query}" if here.query else "")
    shown = {"problem": problem, "here": local_address(address)}
    return show(request, "error.html", shown, problem["status"])


def _times(ratio: float) -> str:
    return f"{ratio:.2f}×"


def _between(of: Any) -> str:
    """of: low_seconds and high_seconds, if they are known."""
    if of.low_seconds is None:
        return "–"
    return milliseconds_between(of.low_seconds, of.high_seconds)


def _ago(moment: datetime | float) -> str:
    """moment: or seconds since 1970-01-01 UTC."""
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, UTC)
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name} ago"
    return "just now"


def _speed(time_scale: float) -> str:
    return scales_in_words(1.0, time_scale)


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _origin(name: str) -> str:
    """What proposed a strategy, in words: `dear_sliced_refined` is `dear sliced, refined`."""
    whole = name.removesuffix("_refined").replace("_", " ")
    return f"{whole}, refined" if name.endswith("_refined") else whole


def _query(wanted: TuningFilter | RankingFilter | dict[str, str]) -> str:
    """The filter as part of an address; ends in `&`."""
    given = wanted if isinstance(wanted, dict) else asdict(wanted)
    if "archived" in given:
        given = given | {"archived": "true" if given["archived"] else ""}
    return "".join(f"{name}={quote(value)}&" for name, value in given.items() if value)


@cache
def _templates(root_path: str) -> Jinja2Templates:
    templates = Jinja2Templates(directory=TEMPLATES)
    templates.env.add_extension(RootPathAddresses)
    templates.env.globals["root_path"] = root_path
    templates.env.globals["version"] = own_version()
    templates.env.globals |= {"form_field": FORM_FIELD, "form_header": FORM_HEADER}
    templates.env.globals |= {"meanings": meanings()}
    templates.env.globals |= {"settled_spread": SETTLED_SPREAD, "fewest_measured": FEWEST_MEASURED}
    filters = {
        "ms": milliseconds,
        "between": _between,
        "times": _times,
        "ago": _ago,
        "fraction": fraction_in_words,
        "origin": _origin,
        "share": _share,
        "speed": _speed,
        "bytes": bytes_in_words,
        "counted": counted,
        "number": number_in_words,
        "percent": percent_in_words,
        "method": method,
        "plain": asdict,
        "query": _query,
    }
    templates.env.filters |= filters
    return templates
