from collections import UserDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autosync.errors import InvalidInput
from autosync.importing.recording_devices import MetaDevice
from autosync.importing.training_step import (
    batch_size_of,
    check_inputs,
    has_batch_size,
    input_tensors,
    map_tensors,
    resize_batch,
)

IMAGES, LABELS = torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)


def test_one_tensor_a_tuple_a_list_and_a_mapping() -> None:
    assert check_inputs(IMAGES, "mine") == (IMAGES,)
    assert check_inputs([IMAGES, LABELS], "mine") == (IMAGES, LABELS)
    given = {"pixels": IMAGES, "labels": LABELS, "return_dict": True, "mask": None, "scale": 0.5}
    assert check_inputs(UserDict(given), "mine") == given


@pytest.mark.parametrize("inputs", [(), {}, 3, (1, 2), {"x": 1}, (None,), "text"])
def test_without_a_tensor_there_is_nothing_to_record(inputs: Any) -> None:
    with pytest.raises(InvalidInput, match="a tuple of tensors or a dict of keyword arguments"):
        check_inputs(inputs, "mine")


def test_keywords_without_a_tensor_are_named_by_their_values() -> None:
    with pytest.raises(InvalidInput, match=r"got \['int', 'NoneType'\]"):
        check_inputs({"x": 1, "mask": None}, "mine")


def test_unsupported_inputs_are_named_by_their_place() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_inputs({"images": IMAGES, "targets": [{"boxes": SimpleNamespace()}]}, "mine")
    assert "example_inputs['targets'][0]['boxes'] is a SimpleNamespace" in caught.value.message


def test_containers_keep_their_kind() -> None:
    pair = namedtuple("pair", ["left", "right"])
    given = {"a": [LABELS, (LABELS, 3)], "b": pair(LABELS, None), "c": UserDict(x=LABELS)}
    changed = map_tensors(given, lambda tensor: tensor + 1)
    assert isinstance(changed["b"], pair)
    assert isinstance(changed["c"], UserDict)
    assert changed["a"][1][1] == 3
    assert all(int(tensor[0]) == 1 for tensor in input_tensors(changed))
    assert int(LABELS[0]) == 0


@pytest.mark.parametrize(
    ("inputs", "size"),
    [
        ((IMAGES, LABELS), 4),
        ({"ids": LABELS[:2], "labels": LABELS[:2], "positions": torch.zeros(9)}, 2),
        ((torch.zeros(9, 9), IMAGES, LABELS), 4),
        ((IMAGES, torch.zeros(7)), 4),
        (([torch.zeros(3, 8, 8)] * 2, [{"boxes": torch.zeros(5, 4)}] * 2), 2),
        (([IMAGES, IMAGES], LABELS), 4),
        ((torch.tensor(1.0),), None),
    ],
    ids=["usual", "keywords", "graph first", "one without", "samples", "features", "scalar"],
)
def test_the_batch_size_is_what_most_inputs_begin_with(inputs: Any, size: int | None) -> None:
    assert batch_size_of(inputs) == size
    assert size is None or has_batch_size(inputs, size)


def test_a_batch_twice_as_large() -> None:
    inputs = {
        "images": [torch.zeros(3, 8, 8)] * 2,
        "targets": [{"boxes": torch.zeros(5, 4)}] * 2,
        "scores": torch.zeros(7, 2),
        "sizes": torch.zeros(7),
        "train": True,
    }
    twice = resize_batch(inputs, 2, 2, MetaDevice())
    assert isinstance(twice, dict)
    assert [tuple(image.shape) for image in twice["images"]] == [(3, 8, 8)] * 4
    assert [tuple(target["boxes"].shape) for target in twice["targets"]] == [(5, 4)] * 4
    assert tuple(twice["scores"].shape) == (7, 4)
    assert tuple(twice["sizes"].shape) == (7,)
    assert twice["train"] is True
    assert {tensor.device.type for tensor in input_tensors(twice)} == {"meta"}
