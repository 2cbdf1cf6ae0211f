"""Which rows go where, without ranks."""

from itertools import pairwise

import pytest

from autosync.extensions.placement.document import dealt_rows
from autosync.extensions.placement.row_exchange import RowRoute, route_between

DIVISIONS = [
    ((4, 4), (0, 8)),
    ((5, 3), (2, 6)),
    ((5, 3, 2), (0, 7, 3)),
    ((0, 4, 1), (5, 0, 0)),
    ((1, 1, 1), (1, 1, 1)),
]


@pytest.mark.parametrize(("source", "target"), DIVISIONS)
def test_rows_keep_their_order_and_come_back(
    source: tuple[int, ...], target: tuple[int, ...]
) -> None:
    ranks = range(len(source))
    routes = [route_between(source, target, rank) for rank in ranks]
    edges = [sum(source[:rank]) for rank in range(len(source) + 1)]
    rows = [list(range(start, stop)) for start, stop in pairwise(edges)]
    assert dealt(rows, routes) == [
        list(range(sum(target[:rank]), sum(target[: rank + 1]))) for rank in ranks
    ]
    back = [route.back for route in routes]
    assert dealt(dealt(rows, routes), back) == rows
    assert back == [route_between(target, source, rank) for rank in ranks]


def dealt(rows: list[list[int]], routes: list[RowRoute]) -> list[list[int]]:
    """What an all-to-all with these counts leaves on every rank."""
    found: list[list[int]] = []
    for receiver in range(len(rows)):
        got: list[int] = []
        for sender, own in enumerate(rows):
            start = sum(routes[sender].sent[:receiver])
            sent = own[start : start + routes[sender].sent[receiver]]
            assert len(sent) == routes[receiver].received[sender]
            got += sent
        found.append(got)
    return found


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.1, 0.2, 0.7), (1 / 3,) * 3])
def test_shares_deal_every_row(shares: tuple[float, ...], rows: int) -> None:
    found = dealt_rows(shares, rows)
    assert sum(found) == rows
    assert all(abs(count - share * rows) <= 1 for count, share in zip(found, shares, strict=True))
