from itertools import combinations

import numpy as np

from autosync.search.designs.tensor_fusion import max_min_partitions


def largest_smallest(sizes: list[float], parts: int) -> float:
    """Of every partition of the chain."""
    return max(
        min(sum(sizes[a:b]) for a, b in zip((0, *cut), (*cut, len(sizes)), strict=True))
        for cut in combinations(range(1, len(sizes)), parts - 1)
    )


def test_partitions_are_the_best_of_all() -> None:
    rng = np.random.default_rng(2)
    for _ in range(40):
        sizes = rng.integers(1, 60, rng.integers(1, 9)).astype(float)
        partitions = max_min_partitions(sizes)
        assert len(partitions) == len(sizes)
        for parts, begins in enumerate(partitions, 1):
            assert len(begins) == parts
            assert begins[0] == 0
            assert (np.diff(begins) > 0).all()
            smallest = np.add.reduceat(sizes, begins).min()
            assert smallest == largest_smallest(sizes.tolist(), parts)


def test_of_equal_partitions_the_first_part_is_shortest() -> None:
    assert max_min_partitions(np.array([2.0, 1.0, 1.0, 2.0]))[1].tolist() == [0, 2]
    assert max_min_partitions(np.array([5.0, 1.0, 1.0]))[1].tolist() == [0, 1]


def test_the_longest_chain_of_a_bundled_model_is_partitioned() -> None:
    sizes = np.random.default_rng(0).integers(1, 10**7, 400).astype(float)
    partitions = max_min_partitions(sizes)
    assert [len(begins) for begins in partitions] == list(range(1, 401))
    assert partitions[-1].tolist() == list(range(400))
