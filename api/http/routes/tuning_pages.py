"""Pages of one tuning: its answer and why, its strategies and its trials."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from autosync.api.engine import job_queue, tuning_control
from autosync.api.engine.phases import TRIALS
from autosync.api.http.dependencies import Cursor, DatabaseDep, Id, LimitsDep, Reading
from autosync.api.http.page_templates import show
from autosync.api.views import documents, reports, service
from autosync.api.views.dashboard.framework_answers import framework_answers
from autosync.api.views.dashboard.strategy_labels import strategy_labels
from autosync.api.views.rankings import (
    RANKING_STATES,
    WHOLE_RANKING,
    RankingFilter,
    baseline_name,
    baseline_strategy,
    ddp_strategy,
    found_strategies,
    measured_ddp_seconds,
    ranked_count,
    ranked_strategies,
    ranked_strategy,
)
from autosync.api.views.simulators import simulator_page
from autosync.api.views.tuning_schemas import RankedStrategy, Tuning
from autosync.api.views.verdict import caveats_of, headline

RANKED_ON_A_PAGE = 25
TRIALS_ON_A_PAGE = 50
RANKING_ORDERS = {
    "step_seconds": "fastest first",
    "-step_seconds": "slowest first",
    "predicted_seconds": "fastest by prediction first",
    "spread": "least spread first",
    "-spread": "most spread first",
    "origin": "proposed by, A to Z",
}
TRIAL_ORDERS = {
    "position": "in the order they ran",
    "-position": "newest first",
    "step_seconds": "fastest first",
    "-step_seconds": "slowest first",
    "predicted_seconds": "fastest by prediction first",
    "-spread": "most spread first",
}
Position = Annotated[int, Path(ge=0, lt=2**31)]
Text = Annotated[str, Form(max_length=10_000)]

Words = Annotated[str, Query(max_length=200)]

router = APIRouter(prefix="/tunings/{tuning_id}", include_in_schema=False)


def _wanted(text: Words = "", state: Words = "", sort: Words = "step_seconds") -> RankingFilter:
    return RankingFilter(text, state, sort)


Wanted = Annotated[RankingFilter, Depends(_wanted)]


@router.get("")
def tuning_page(
    tuning_id: Id, request: Request, session: Reading, wanted: Wanted, cursor: Cursor = None
) -> Response:
    shown = _status(session, tuning_id)
    shown |= _ranked(session, shown["tuning"], wanted, cursor)
    shown["costs"] = documents.measured_costs(session, shown["tuning"])
    return show(request, "tuning/tuning.html", shown)


@router.get("/live")
def live_fragment(tuning_id: Id, request: Request, session: Reading) -> Response:
    return show(request, "tuning/status.html", _status(session, tuning_id))


@router.get("/ranked")
def ranked_fragment(
    tuning_id: Id, request: Request, session: Reading, wanted: Wanted, cursor: Cursor = None
) -> Response:
    tuning = reports.tuning(session, tuning_id)
    shown = {"tuning": tuning} | _ranked(session, tuning, wanted, cursor)
    return show(request, "tuning/ranked.html", shown)


@router.get("/charts")
def charts_fragment(tuning_id: Id, request: Request, session: Reading) -> Response:
    from autosync.api.views.dashboard.tuning_charts import tuning_charts  # loads numba

    tuning = reports.tuning(session, tuning_id)
    charts, limit = tuning_charts(session, tuning)
    shown = {
        "tuning": tuning,
        "charts": charts,
        "limit": limit,
        "simulator_page": simulator_page(session, tuning),
    }
    return show(request, "tuning/charts.html", shown)


@router.get("/why")
def why_fragment(
    tuning_id: Id, request: Request, session: Reading, strategy: str | None = None
) -> Response:
    """What differs from DDP: of the fastest other strategy, which is the answer where there is a
    faster one, or of any strategy."""
    from autosync.api.views.dashboard.strategy_accounts import best_other_than_ddp

    tuning = reports.tuning(session, tuning_id)
    if ddp_strategy(session, tuning_id) is None:  # the first that a tuning proposes
        return show(request, "tuning/why_later.html", {"tuning": tuning})
    answer = tuning.result.strategy_id if tuning.result and not tuning.result.keep_ddp else None
    chosen = strategy or answer or best_other_than_ddp(session, tuning_id)
    shown = {**_why(session, tuning_id, chosen), "chosen": strategy}
    return show(request, "tuning/why.html", shown)


@router.get("/frameworks")
def frameworks_fragment(tuning_id: Id, request: Request, session: Reading) -> Response:
    """What other frameworks can run of what was measured."""
    tuning = reports.tuning(session, tuning_id)
    shown = {
        "tuning": tuning,
        "answers": framework_answers(session, tuning_id),
        "baseline": baseline_name(session, tuning),
    }
    return show(request, "tuning/frameworks.html", shown)


@router.get("/strategies/{strategy_id}")
def strategy_page(
    tuning_id: Id, strategy_id: Id, request: Request, session: Reading, cursor: Cursor = None
) -> Response:
    shown = {
        **_why(session, tuning_id, strategy_id),
        "row": ranked_strategy(session, tuning_id, strategy_id),
        "ranked_total": ranked_count(session, tuning_id),
        "trials": reports.trials(
            session, tuning_id, TRIALS_ON_A_PAGE, cursor, strategy_id=strategy_id
        ),
        "cursor": cursor,
    }
    return show(request, "tuning/strategy.html", shown)


@router.get("/compare")
def compare_strategies(
    tuning_id: Id, request: Request, session: Reading, left: str, right: str
) -> Response:
    shown = _compared(session, tuning_id, [left, right])
    return show(request, "tuning/compare_strategies.html", shown)


@router.get("/trials")
def trials_page(
    tuning_id: Id,
    request: Request,
    session: Reading,
    cursor: Cursor = None,
    text: Words = "",
    phase: Words = "",
    failed: bool = False,
    sort: Words = "position",
) -> Response:
    trials = reports.trials(
        session, tuning_id, TRIALS_ON_A_PAGE, cursor, sort, failed=failed, phase=phase, text=text
    )
    asked = {"text": text, "phase": phase, "failed": "true" if failed else "", "sort": sort}
    shown = {
        "tuning": reports.tuning(session, tuning_id),
        "trials": trials,
        "cursor": cursor,
        "asked": asked,
        "narrows": any((text, phase, failed)),
        "orders": TRIAL_ORDERS,
        "phases": TRIALS,
        "labels": strategy_labels(session, [each.strategy_id for each in trials.items]),
    }
    return show(request, "tuning/trials.html", shown)


@router.get("/trials/{position}")
def trial_details_page(
    tuning_id: Id, position: Position, request: Request, session: Reading
) -> Response:
    trial = reports.trial(session, tuning_id, position)
    shown = {
        "tuning": reports.tuning(session, tuning_id),
        "trial": trial,
        "label": strategy_labels(session, [trial.strategy_id])[trial.strategy_id],
    }
    return show(request, "tuning/trial.html", shown)


@router.post("/cancel")
def cancel(tuning_id: Id, database: DatabaseDep) -> Response:
    job_queue.cancel(database, tuning_id)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.post("/pause")
def pause(tuning_id: Id, database: DatabaseDep) -> Response:
    """After the trial that runs."""
    tuning_control.pause(database, tuning_id)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.post("/resume")
def resume(tuning_id: Id, database: DatabaseDep, limits: LimitsDep) -> Response:
    tuning_control.resume(database, tuning_id, limits)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.post("/notes")
def write_notes(tuning_id: Id, database: DatabaseDep, tags: Text = "", note: Text = "") -> Response:
    lines = note.replace("\r\n", "\n")  # as browsers send each line break of a form
    tuning_control.write_notes(database, tuning_id, tags, lines)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


@router.post("/archive")
def archive(
    tuning_id: Id, database: DatabaseDep, archived: Annotated[bool, Form()] = False
) -> Response:
    tuning_control.write_notes(database, tuning_id, archived=archived)
    return RedirectResponse(f"/tunings/{tuning_id}", 303)


def _status(session: Session, tuning_id: str) -> dict[str, Any]:
    tuning = reports.tuning(session, tuning_id)
    ddp = measured_ddp_seconds(session, tuning)
    ran_on = ", ".join(tuning.ran_on)
    place = job_queue.places(session).get(tuning_id) if tuning.state == "queued" else None
    return {
        "tuning": tuning,
        "headline": headline(tuning, ddp, ran_on, place),
        "answer": _answer(session, tuning),
        "ddp_seconds": ddp,
        "simulator_page": simulator_page(session, tuning),
        "ran_on": ran_on or tuning.launcher,
        "caveats": caveats_of([tuning])[tuning_id],
        "service": service.service_activity(session),
        "fastest": _fastest(session, tuning_id),
        "time_left": reports.time_left_words(session, tuning) if tuning.state == "running" else "",
    }


def _fastest(session: Session, tuning_id: str) -> str:
    """The id of the strategy that is fastest so far; empty before the first."""
    first = ranked_strategies(session, tuning_id, 1).items
    return first[0].strategy_id if first and first[0].step_seconds is not None else ""


def _answer(session: Session, tuning: Tuning) -> Any:
    """The answer in chips; None before there is one."""
    if tuning.result is None:
        return None
    found = strategy_labels(session, [tuning.result.strategy_id])
    return found[tuning.result.strategy_id]


def _ranked(
    session: Session, tuning: Tuning, wanted: RankingFilter, cursor: str | None
) -> dict[str, Any]:
    page = found_strategies(session, tuning.id, RANKED_ON_A_PAGE, cursor, wanted)
    whole = wanted == WHOLE_RANKING
    shown = _with_baseline(session, tuning.id, page.items) if whole else page.items
    return {
        "ranked": shown,
        "ranked_total": ranked_count(session, tuning.id),
        "baseline": baseline_name(session, tuning),
        "cursor": cursor,
        "next": page.next,
        "wanted": wanted,
        "narrows": bool(wanted.text or wanted.state),
        "orders": RANKING_ORDERS,
        "states": RANKING_STATES,
        "labels": strategy_labels(session, [row.strategy_id for row in shown]),
    }


def _with_baseline(
    session: Session, tuning_id: str, shown: list[RankedStrategy]
) -> list[RankedStrategy]:
    """A page of the ranking; the baseline is on each, as what the others are judged by."""
    known = baseline_strategy(session, tuning_id)
    if known is None or not shown or any(row.is_baseline for row in shown):
        return shown
    baseline = ranked_strategy(session, tuning_id, known.strategy_id)
    if baseline is None:
        return shown
    return [baseline, *shown] if baseline.rank < shown[0].rank else [*shown, baseline]


def _why(session: Session, tuning_id: str, strategy_id: str | None) -> dict[str, Any]:
    """The strategy beside DDP; DDP alone where no other is given."""
    ddp = ddp_strategy(session, tuning_id)
    return _compared(session, tuning_id, [strategy_id, ddp.strategy_id if ddp else None])


def _compared(session: Session, tuning_id: str, strategy_ids: list[str | None]) -> dict[str, Any]:
    from autosync.api.views.dashboard.strategy_accounts import compared_facts, strategy_account
    from autosync.api.views.dashboard.strategy_charts import account_charts  # loads numba

    tuning = reports.tuning(session, tuning_id)
    accounts = [strategy_account(session, tuning_id, each) for each in strategy_ids]
    if len(accounts) > 1 and accounts[0].strategy_id == accounts[1].strategy_id:
        accounts = accounts[:1]
    baseline = baseline_name(session, tuning)
    return {
        "tuning": tuning,
        "accounts": accounts,
        "baseline": baseline,
        "facts": compared_facts(accounts, baseline),
        "charts": account_charts(accounts),
        "choices": _choices(session, tuning_id),
    }


def _choices(session: Session, tuning_id: str) -> list[tuple[str, str]]:
    """Id and name of the strategies that one can look at: the fastest, and DDP."""
    ranked = ranked_strategies(session, tuning_id, RANKED_ON_A_PAGE).items
    fastest = [row for row in ranked if row.step_seconds is not None]
    shown = [row.strategy_id for row in _with_baseline(session, tuning_id, fastest)]
    names = strategy_labels(session, shown)
    return [(key, names[key].whole) for key in shown]
