"""`datasets/clusters/SOURCES.md` names every price and device, as the files have them."""

import re
from datetime import date

from autosync.bundled_data import data_file
from autosync.cluster.cluster_file import bundled_clusters, load_cluster
from autosync.cluster.devices import gpu_types

SOURCES = data_file("clusters", "SOURCES.md").read_text()
PRICE = re.compile(r"^\| (\S+) \| ([\d.]+) \| (\d{4}-\d\d-\d\d) \|", re.MULTILINE)
PRICES = {(float(price), day) for _, price, day in PRICE.findall(SOURCES)}


def test_prices_are_those_of_the_clusters_each_with_its_day() -> None:
    stated = {
        (node.usd_per_hour, cluster.priced_on)
        for cluster in map(load_cluster, bundled_clusters())
        if cluster.priced_on
        for node in cluster.nodes
    }
    assert stated == PRICES
    assert all(date.fromisoformat(day) for _, day in PRICES)


def test_every_device_says_where_its_figures_stand() -> None:
    listed = SOURCES.partition("## Devices")[2]
    named = {
        name
        for row in re.findall(r"^\| ([a-z][^|]*) \|", listed, re.MULTILINE)
        for name in row.split(", ")
    }
    assert named - {"device"} == set(gpu_types())
