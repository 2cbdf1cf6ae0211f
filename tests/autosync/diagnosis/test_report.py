"""The sentence on top, and the three forms of the page."""

import json
from dataclasses import replace

import pytest

from autosync.diagnosis.breakdown import SlowestRank
from autosync.diagnosis.mistakes import Mistake
from autosync.diagnosis.report import Attainable, Diagnosis
from tests.autosync.diagnosis.test_mistakes import GOOD

PREDICTED = Attainable(0.5, "compute", 0.6, "dear", 0.9, "learned")
MEASURED = Diagnosis(1, "ddp", "cuda", 1.0, GOOD)


@pytest.mark.parametrize(
    ("limit", "best", "says"),
    [
        (0.5, 0.6, "Worth tuning: 1.50 times as fast by prediction, at most 2.00 times as fast."),
        (0.8, 0.6, "Worth tuning: 1.25 times as fast by prediction, at most 1.25 times as fast."),
        (0.5, 0.89, "Keep DDP: the best predicted strategy gains 1%; the limit is 2.00 times"),
        (0.97, 0.6, "Keep DDP: at most 3% of an iteration can be gained."),
        (1.4, 0.6, "Keep DDP: at most 0% of an iteration can be gained."),
    ],
)
def test_the_verdict_with_a_prediction(limit: float, best: float, says: str) -> None:
    attainable = replace(PREDICTED, limit_seconds=limit, best_seconds=best)
    assert replace(MEASURED, attainable=attainable).verdict.startswith(says)


def test_without_a_prediction_the_limit_hides_all_communication() -> None:
    """Compute, input and Python are 0.7 of the iteration."""
    sharded = replace(MEASURED, wrapping="fsdp2", step_seconds=2.0)
    assert sharded.limit_seconds == pytest.approx(1.4)
    assert sharded.verdict == "Worth tuning: up to 1.43 times as fast."


def test_no_strategy_shortens_what_the_slowest_rank_does() -> None:
    """The other one waits for it in half of an iteration."""
    fast, slow = (replace(each, transfer=0.0, python=0.1) for each in GOOD.ranks)
    ranks = (replace(fast, compute=0.4, waiting=0.5), replace(slow, compute=0.9))
    found = replace(MEASURED, wrapping="fsdp2", breakdown=replace(GOOD, ranks=ranks))
    assert found.limit_seconds == pytest.approx(1.0)
    assert found.verdict == "Keep FSDP2: at most 0% of an iteration can be gained."


@pytest.mark.parametrize(
    ("compute", "loading", "longer"),
    [((0.6, 0.6), (0.1, 0.1), 0.1), ((0.6, 0.6), (0.0, 0.2), 0.2), ((0.7, 0.5), (0.0, 0.2), 0.0)],
)
def test_input_lengthens_what_the_slowest_rank_does(
    compute: tuple[float, float], loading: tuple[float, float], longer: float
) -> None:
    pairs = zip(GOOD.ranks, compute, loading, strict=True)
    ranks = tuple(replace(rank, compute=own, input=fetching) for rank, own, fetching in pairs)
    found = replace(MEASURED, breakdown=replace(GOOD, ranks=ranks), step_seconds=2.0)
    assert found.input_seconds == pytest.approx(2 * longer)


def test_ranks_that_send_nothing() -> None:
    silent = replace(GOOD, ranks=tuple(replace(each, in_flight=0.0) for each in GOOD.ranks))
    assert "are the ranks synchronized" in replace(MEASURED, breakdown=silent).verdict


def test_messages_are_shown_with_the_gradients_that_they_sum() -> None:
    first, second = (replace(each, place=i) for i, each in enumerate(GOOD.collectives))
    many = tuple(f"blocks.{i}.<w>" for i in range(5))
    named = (replace(first, parameters=many), replace(second, parameters=("stem",)))
    whole = replace(MEASURED, breakdown=replace(GOOD, collectives=named))
    assert "gradients of\n" in whole.to_text()
    assert "blocks.0.<w> (3 more) to blocks.4.<w>\n" in whole.to_text()
    assert "<td>blocks.0.&lt;w&gt; (3 more) to blocks.4.&lt;w&gt;</td>" in whole.to_html()
    found = json.loads(whole.to_json())["breakdown"]["collectives"]
    assert [each["parameters"] for each in found] == [[*many], ["stem"]]
    assert "gradients of" not in MEASURED.to_text()


def test_both_pages_say_how_many_messages_they_leave_out() -> None:
    many = GOOD.collectives[:1] * 43
    whole = replace(MEASURED, breakdown=replace(GOOD, collectives=many))
    for page in (whole.to_text(), whole.to_html()):
        assert "and 3 more" in page
    for page in (MEASURED.to_text(), MEASURED.to_html()):
        assert " more" not in page


def test_ranks_that_issue_different_messages_are_not_said_to_be_equally_fast() -> None:
    page = replace(MEASURED, breakdown=replace(GOOD, is_matched=False)).to_text()
    assert "The ranks issued different messages" in page
    assert "No rank is slower" not in page
    assert "No rank is slower" in MEASURED.to_text()


def test_hosts_that_traces_do_not_name_are_not_counted() -> None:
    late = replace(GOOD, slowest=SlowestRank(1, "", 0.05, "input"))
    page = replace(MEASURED, hosts=0, breakdown=late).to_text()
    assert "ranks on hosts without names, " in page
    assert "Rank 1 is last, " in page


def test_every_form_has_the_verdict_and_what_it_rests_on() -> None:
    whole = replace(
        MEASURED,
        attainable=PREDICTED,
        breakdown=replace(GOOD, slowest=SlowestRank(1, "<b>", 0.05, "input")),
        mistakes=(Mistake("x", "is <wrong>", "mend & go on"),),
        notes=("a note",),
    )
    text, page, data = whole.to_text(), whole.to_html(), json.loads(whole.to_json())
    for part in (whole.verdict, "exposed communication", "a note", "Messages of an iteration"):
        assert part in text
        assert part in page
    assert "is <wrong>" in text
    assert "is &lt;wrong&gt;" in page
    assert "<wrong>" not in page
    assert "Rank 1 on &lt;b&gt; is last" in page
    assert data["version"] == 1
    assert data["verdict"] == whole.verdict
    assert data["breakdown"]["slowest"]["why"] == "input"
