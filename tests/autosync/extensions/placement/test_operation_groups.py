"""Groups of operations around the heaviest modules."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from autosync.domain import Domain
from autosync.extensions.placement.module_borders import borders_of
from autosync.extensions.placement.policy_actions import group_operations, heaviest_modules
from autosync.extensions.placement.proposals import PlaceableModule
from tests.placed_models import LAYERS, SparseTable, Wide, heavy_layers, recorded


def module(name: str, first: int) -> PlaceableModule:
    return PlaceableModule(name, (first,), 4, 1, 1, 1.0, False)


NESTED = [
    module("table", 0),
    module("layer0", 1),
    module("layer0.wide", 1),
    module("layer0.narrow", 2),
    module("layer1", 3),
    module("layer1.wide", 3),
    module("layer1.narrow", 4),
    module("scale", 5),
]
WEIGHTS = {
    "table": 5.0,
    "layer0": 4.0,
    "layer1": 3.9,
    "scale": 0.01,
    **{f"layer{i}.wide": 3.0 for i in range(2)},
    **{f"layer{i}.narrow": 0.9 for i in range(2)},
}


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (2, ["table", "layer0"]),
        (3, ["table", "layer0", "layer1"]),
        (4, ["table", "layer0", "layer1"]),
        (5, ["table", "layer0.wide", "layer0.narrow", "layer1.wide", "layer1.narrow"]),
    ],
)
def test_modules_alike_are_split_together_or_not_at_all(most: int, expected: list[str]) -> None:
    assert [each.name for each in heaviest_modules(NESTED, WEIGHTS, most)] == expected


def test_operations_join_the_nearest_of_the_heaviest() -> None:
    domain = recorded(Wide(), 3)
    groups = group_operations(domain, 3)
    assert groups.count == 3
    own = [set(borders_of(domain.graph, name).operations) for name in groups.modules]
    for operation in range(len(domain.graph.operations)):
        hops = _hops(domain, operation)
        nearest = [min(hops.get(index, 99) for index in inside) for inside in own]
        assert nearest[int(groups.group[operation])] == min(nearest)


def _hops(domain: Domain, start: int) -> dict[int, int]:
    neighbours: dict[int, set[int]] = {}
    for index, operation in enumerate(domain.graph.operations):
        for source in operation.inputs:
            neighbours.setdefault(index, set()).add(source)
            neighbours.setdefault(source, set()).add(index)
    found, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        for other in neighbours.get(here, ()):
            if other not in found:
                found[other] = found[here] + 1
                waiting.append(other)
    return found


def test_a_table_without_compute_is_heavy_where_links_are_slow() -> None:
    domain = recorded(Wide(), 3)
    nothing = tuple(
        0.0 if operation.type == "embedding" else seconds
        for operation, seconds in zip(
            domain.graph.operations, domain.profile.forward_seconds, strict=True
        )
    )
    profile = replace(domain.profile, forward_seconds=nothing)
    slow = tuple(replace(node, bandwidth_gbps=1e-5) for node in domain.cluster.nodes)
    domain = replace(domain, profile=profile, cluster=replace(domain.cluster, nodes=slow))
    assert "table" in group_operations(domain, 4).modules


def test_what_a_policy_sees_is_relative_to_what_is_computed() -> None:
    """Links and devices twice as fast: the same, but for what startups weigh."""
    domain = heavy_layers(gbps=0.5)
    seconds = tuple(0.5 * each for each in domain.profile.forward_seconds)
    backward = tuple(0.5 * each for each in domain.profile.backward_seconds)
    profile = replace(domain.profile, forward_seconds=seconds, backward_seconds=backward)
    twice = replace(heavy_layers(gbps=1.0), profile=profile)
    slow, fast = group_operations(domain, LAYERS), group_operations(twice, LAYERS)
    np.testing.assert_allclose(slow.features, fast.features, rtol=0.05)
    np.testing.assert_allclose(slow.nodes, fast.nodes, rtol=0.05)
    slower = group_operations(heavy_layers(gbps=0.1), LAYERS)
    assert (slower.features[:, 1] > slow.features[:, 1]).all()  # of gradients on the wire


def test_sparse_gradients_are_told() -> None:
    groups = group_operations(recorded(SparseTable(), 2), 4)
    assert dict(zip(groups.modules, groups.sparse, strict=True)) == {"table": True, "last": False}
