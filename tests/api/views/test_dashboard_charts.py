"""Charts and lists that group or compare: step time by choice, convergences, what was measured."""

from dataclasses import replace

from autosync.api.db import Database
from autosync.api.views import reports
from autosync.api.views.dashboard.choice_chart import choice_chart, chosen_values
from autosync.api.views.dashboard.cluster_list import stored_clusters
from autosync.api.views.dashboard.measured_models import measured_models
from autosync.api.views.dashboard.strategy_labels import Chip, StrategyLabel
from autosync.api.views.dashboard.trial_points import trial_points
from autosync.api.views.dashboard.tuning_comparison import (
    FACTS,
    OUTCOMES,
    compared_tunings,
    convergences,
)
from autosync.api.views.rankings import measured_ddp_seconds
from autosync.units import (
    counted,
    milliseconds,
    number_in_words,
    percent_in_words,
    scales_in_words,
)
from tests.api.sample import (
    TESTBED,
    Shown,
    claimed,
    finished,
    finished_without_ddp,
    run_search,
    small_request,
)
from tests.domains import domain_of, grid_cluster


def label(*chips: Chip) -> StrategyLabel:
    return StrategyLabel("", "", chips)


LABELS = {
    "a": label(Chip("method", "all-reduce × 3"), Chip("order", "front layers first")),
    "b": label(Chip("method", "all-reduce × 9"), Chip("method", "parameter server × 1")),
    "c": label(Chip("method", "all-reduce × 1"), Chip("slices", "slices of 4 MiB")),
    "torch": label(Chip("engine", "torch's fully_shard"), Chip("method", "sharded × 2")),
    "failed": label(Chip("method", "all-reduce × 2")),
}
SECONDS = {"a": 0.01, "b": 0.03, "c": 0.02, "torch": 0.001}


def test_strategies_are_grouped_by_what_they_chose() -> None:
    found = {(each.kind, each.value): each.seconds for each in chosen_values(LABELS, SECONDS)}
    assert found == {
        ("method", "all-reduce"): (0.01, 0.02, 0.03),
        ("method", "parameter server"): (0.03,),
        ("order", "front layers first"): (0.01,),
        ("order", "as gradients become ready"): (0.02, 0.03),
        ("slices", "no slices"): (0.01, 0.03),
        ("slices", "slices of 4 MiB"): (0.02,),
    }
    assert chosen_values({"a": LABELS["a"]}, SECONDS) == [], "nothing chose otherwise"


def test_the_chart_of_choices_has_a_row_and_a_line_for_each() -> None:
    values = chosen_values(LABELS, SECONDS)
    chart = choice_chart(values, 0.04)
    (plot,) = chart.plots
    assert plot.y.categories == tuple(each.value for each in values)
    assert [rule.at for rule in plot.rules] == [40.0]
    assert chart.rows[0] == ("all-reduce", "Method", "3", "10.0 ms", "20.0 ms", "30.0 ms")
    assert choice_chart(values, None).plots[0].rules == ()
    assert choice_chart(values, None, "Few.").footnote.endswith("of its choice alone. Few.")
    spans = plot.series[1].points
    assert spans[0][2] == "all-reduce: 3 strategies, 10.0 to 30.0 ms"
    assert spans[1][2] == "parameter server: 1 strategy, 30.0 to 30.0 ms"
    short = choice_chart(chosen_values(LABELS, {key: s / 1e3 for key, s in SECONDS.items()}), None)
    assert short.plots[0].series[1].points[0][2].endswith("0.01 to 0.03 ms")


def test_convergences_are_of_seconds_or_of_speed_ups(shown_sqlite: Shown) -> None:
    ids = [shown_sqlite.second, shown_sqlite.first]
    with shown_sqlite.database.reading() as session:
        tunings = [reports.tuning(session, each) for each in ids]
        trials = [trial_points(session, each) for each in ids]
        ddp = [measured_ddp_seconds(session, tuning) for tuning in tunings]
    seconds = convergences(tunings, trials, ddp, in_seconds=True)
    ratios = convergences(tunings, [*trials[:1], []], [*ddp[:1], None], in_seconds=False)
    assert [len(chart.plots[0].series) for chart in (seconds, ratios)] == [2, 1]
    assert [series.colour for series in seconds.plots[0].series] == ["accent", "series-2"]
    last = seconds.plots[0].series[0].points[-1]
    best = float(seconds.rows[0][2].removesuffix(" ms"))
    assert last[0] == trials[0][-1].position + 1
    assert isinstance(last[1], float)
    assert abs(last[1] - best) < 0.1
    assert ratios.plots[0].rules[0].name == "DDP"
    times = [point[1] for point in ratios.plots[0].series[0].points]
    assert all(isinstance(value, float) and value >= 1.0 for value in times)
    assert ratios.rows[1][2] == "–"
    assert seconds.rows[0][3] == milliseconds(ddp[0])
    alone = convergences(tunings[:1], trials[:1], [None], in_seconds=False)
    assert alone.plots[0].series == ()
    assert alone.rows[0][2:] == (seconds.rows[0][2], "–"), "its best is known all the same"


def test_a_comparison_says_what_ddp_took_and_what_speed_ups_are_over(sqlite: Database) -> None:
    request = small_request(budget=6)
    done = finished_without_ddp(sqlite, request)
    held, store = claimed(sqlite, request)
    run_search(store, request)
    with sqlite.reading() as session:
        compared = compared_tunings(session, [done, held.job_id])
        ddp = measured_ddp_seconds(session, reports.tuning(session, held.job_id))
    ended = compared.tunings[0]
    facts = {fact.name: fact.words for fact in compared.facts}
    assert ended.result is not None
    assert ddp is not None
    assert facts["torch's DDP"] == ("–", milliseconds(ddp))
    assert facts["Trials ran on"] == (TESTBED, TESTBED), "asked for was another launcher"
    exact = [TESTBED.replace(")", f", rates within {each} %)") for each in (0.6, 0.7)]
    assert FACTS["Trials ran on"](ended.model_copy(update={"ran_on": exact})) == TESTBED
    over = f"{ended.result.speedup:.3f}× over {ended.result.baseline}"
    assert facts["Speed-up"] == (over, "–")
    kept = ended.result.model_copy(update={"keep_ddp": True})
    of_kept = ended.model_copy(update={"result": kept})
    assert (OUTCOMES["Speed-up"](of_kept), OUTCOMES["Interval"](of_kept)) == ("keep DDP", "–")


def test_one_is_not_many_and_small_numbers_are_not_nothing() -> None:
    assert counted(1, "node") == "1 node"
    assert counted(0, "node") == "0 nodes"
    assert counted(12_000, "strategy", "strategies") == "12,000 strategies"
    assert [milliseconds(each) for each in (-1e-9, 8.5e-4, 1.2345, None)] == [
        "0.00 ms", "0.85 ms", "1,234 ms", "–",
    ]  # fmt: skip
    numbers = (1234.5, 99.96, 35.25, 0.4125, 0.0)
    assert list(map(number_in_words, numbers)) == ["1,234", "100", "35.2", "0.412", "0"]
    percents = (87.4, 99.6, 99.97, 100.0, 103.2)
    told = ["87 %", "99.6 %", "99.9 %", "100 %", "103 %"]
    assert list(map(percent_in_words, percents)) == told


def test_scales_are_told_in_words() -> None:
    assert scales_in_words(1 / 64, 2.0) == "1/64 of the bytes, 2 times slower"
    assert scales_in_words(1.0, 1.0) == ""
    assert scales_in_words(0.0001234, 0.5) == "0.000123 of the bytes, 2 times faster"


def test_models_that_were_measured_and_clusters_come_in_pages(database: Database) -> None:
    small = small_request()
    wide = replace(small, domain=domain_of(cluster=grid_cluster(2)))
    ids = [finished(database, request) for request in (small, wide, small)]
    with database.reading() as session:
        trials = sum(len(reports.trials(session, each).items) for each in ids)
        whole, last = measured_models(session, 5)
        assert last is None
        assert sum(each.trials for each in whole) == trials
        assert sum(each.tunings for each in whole) == 3
        assert sum(each.failed for each in whole) == 3
        assert measured_models(session, 5, text="CHAIN grid")[0] == whole
        assert measured_models(session, 5, text="nobody") == ([], None)
        first, following = stored_clusters(session, 1)
        second, end = stored_clusters(session, 1, following)
        assert {line.nodes for line in (*first, *second)} == {2, 4}
        assert end is None
        assert len(stored_clusters(session, 5, text="CPU")[0]) == 2
        assert stored_clusters(session, 5, text="v100") == ([], None)
