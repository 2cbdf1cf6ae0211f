from autosync.simulator.scaling import ScalePoint, knee_of


def point(nodes: int, samples_per_second: float, usd_per_hour: float | None = None) -> ScalePoint:
    return ScalePoint(nodes, nodes, 1.0, 0.9, 1.1, samples_per_second, 1.0, "compute", usd_per_hour)


def test_the_knee_is_where_a_further_node_brings_less_than_half() -> None:
    assert knee_of([point(1, 100), point(2, 190), point(4, 350), point(8, 450)]) == 4
    assert knee_of([point(1, 100), point(2, 149), point(4, 300)]) == 1
    assert knee_of([point(2, 200), point(4, 380)]) is None
    assert knee_of([point(4, 100)]) is None


def test_samples_a_dollar_need_a_price() -> None:
    assert point(2, 100.0).samples_per_dollar is None
    assert point(2, 100.0, 36.0).samples_per_dollar == 1e4
