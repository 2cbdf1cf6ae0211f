"""`datasets/clusters/SOURCES.md` names every price and device, as the files have them."""

import re
from datetime import date

import pytest

from autosync.bundled_data import data_file
from autosync.cluster.cluster_file import bundled_clusters, load_cluster
from autosync.cluster.devices import gpu_types

SOURCES = data_file("clusters", "SOURCES.md").read_text()
PRICE = re.compile(r"^\| (\S+) \| ([\d.]+) \| (\d{4}-\d\d-\d\d) \|", re.MULTILINE)
PRICES = {(float(price), day) for _, price, day in PRICE.findall(SOURCES)}


@pytest.mark.parametrize("name", [n for n in bundled_clusters() if load_cluster(n).priced_on])
def test_every_price_says_where_it_stands(name: str) -> None:
    cluster = load_cluster(name)
    priced = {(node.usd_per_hour, cluster.priced_on) for node in cluster.nodes}
    assert priced <= PRICES
    assert date.fromisoformat(cluster.priced_on)


def test_no_price_is_listed_that_no_cluster_has() -> None:
    stated = {
        (node.usd_per_hour, cluster.priced_on)
        for cluster in map(load_cluster, bundled_clusters())
        for node in cluster.nodes
        if node.usd_per_hour
    }
    assert stated == PRICES


def test_every_device_says_where_its_figures_stand() -> None:
    listed = SOURCES.partition("## Devices")[2]
    named = {
        name
        for row in re.findall(r"^\| ([a-z][^|]*) \|", listed, re.MULTILINE)
        for name in row.split(", ")
    }
    assert named - {"device"} == set(gpu_types())
