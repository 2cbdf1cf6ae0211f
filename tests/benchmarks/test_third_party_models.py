"""What the comparison of third-party models counts as a difference."""

import math

import torch

from benchmarks.third_party_models import largest_difference, table


def test_a_value_that_is_not_a_number_is_the_largest_difference() -> None:
    expected = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}
    found = {"a": torch.tensor([1.0, 2.5]), "b": torch.tensor([math.nan, 4.0])}
    assert largest_difference(expected, found) == (math.inf, "b")
    assert largest_difference(expected, {"a": found["a"], "b": expected["b"]}) == (0.5, "a")


def test_equal_infinities_do_not_differ() -> None:
    mask = {"mask": torch.tensor([0.0, -math.inf])}
    assert largest_difference(mask, mask) == (0.0, "mask")
    assert largest_difference(mask, {"mask": torch.zeros(2)}) == (math.inf, "mask")


def test_a_model_that_is_refused_with_values_too_is_listed_without_a_row() -> None:
    row = {"model": "odd", "library": "timm", "ran": "timm 1.0", "refused": "it reads a value"}
    lines = table([row]).splitlines()
    assert not [line for line in lines if line.startswith("| odd")]
    assert "- odd: it reads a value" in lines
