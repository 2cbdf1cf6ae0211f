"""What is printed of a tuning's answer."""

from dataclasses import replace
from pathlib import Path

import pytest

from autosync.api.cli.tuning_report import print_two_lines
from autosync.bundle import make_bundle
from autosync.documents import to_json
from autosync.extensions.staleness.document import Staleness
from autosync.extensions.staleness.proposals import clocked_servers
from autosync.search.designs.known_designs import all_reduce_5mb
from autosync.strategy import Replica, Strategy
from tests.domains import domain_of, grid_cluster

DOMAIN = domain_of(cluster=grid_cluster(2))
PLAIN = 'autosync.distribute(model, optimizer, "best.json")'
SHARES = (Replica(0, 0.75), Replica(1, 0.25))


def printed(strategy: Strategy, capsys: pytest.CaptureFixture[str]) -> str:
    print_two_lines(Path("best.json"), to_json(make_bundle(strategy, DOMAIN)))
    return " ".join("".join(capsys.readouterr()).split())


def test_the_lines_have_what_the_answer_needs(capsys: pytest.CaptureFixture[str]) -> None:
    even = all_reduce_5mb(DOMAIN)
    told = printed(even, capsys)
    assert PLAIN in told
    assert "ShareSampler" not in told
    told = printed(replace(even, replicas=SHARES), capsys)
    assert PLAIN in told
    assert 'autosync.ShareSampler(data, global_batch, "best.json")' in told
    late = clocked_servers(DOMAIN).carrying(Staleness(2))
    assert 'optimizer, "best.json", allow_inexact=True)' in printed(late, capsys)
