import pytest

from autosync.runtime.bundle_fit import matched_names, modules_alike, similar_names

OWN = ("layer.weight", "layer.bias")


@pytest.mark.parametrize(
    "planned",
    [
        OWN,
        ("layer.bias", "layer.weight"),
        ("model.layer.weight", "model.layer.bias"),
        ("net.model.layer.weight", "net.model.layer.bias"),
        ("layer._orig_mod.weight", "layer._orig_mod.bias"),
        ("model.layer._checkpoint_wrapped_module.weight", "model.layer.bias"),
    ],
)
def test_names_correspond(planned: tuple[str, ...]) -> None:
    found = matched_names(planned, OWN)
    assert tuple(found) == planned
    assert all(
        theirs.rpartition(".")[2] == mine.rpartition(".")[2] for theirs, mine in found.items()
    )
    back = matched_names(OWN, planned)
    assert {mine: theirs for theirs, mine in back.items()} == found


@pytest.mark.parametrize(
    "planned",
    [
        ("model.layer.weight",),
        ("model.layer.bias", "model.layer.weight"),
        ("model.layer.weight", "layer.bias"),
        ("a.layer.weight", "b.layer.bias"),
        ("modellayer.weight", "modellayer.bias"),
        ("model.layer.weight", "model.layer.bias", "model.head.weight"),
        (),
    ],
    ids=["fewer", "order", "one", "two prefixes", "no word", "more", "none"],
)
def test_names_do_not_correspond(planned: tuple[str, ...]) -> None:
    assert matched_names(planned, OWN) == {}


def test_an_ambiguous_name_is_told_with_both() -> None:
    planned = ("student.weight", "teacher.weight")
    told = similar_names("student.weight", planned, ("weight",))
    assert "'weight' could be 'student.weight' or 'teacher.weight'" in told
    told = similar_names("weight", ("weight",), planned)
    assert "'student.weight' or 'teacher.weight'" in told
    assert "not all names correspond" in similar_names("m.weight", ("m.weight", "x"), ("weight",))
    assert similar_names("gone", planned, ("weight",)) == ""


def test_modules_are_found_behind_another_prefix_unless_several_may_be_meant() -> None:
    assert modules_alike("layers.0", ["", "layers", "layers.0"]) == ["layers.0"]
    assert modules_alike("layers.0", ["", "net.layers", "net.layers.0"]) == ["net.layers.0"]
    assert modules_alike("net.layers.0", ["", "0", "layers", "layers.0"]) == ["layers.0"]
    assert modules_alike("layers.0", ["", "student.layers.0", "the_teacher.layers.0"]) == [
        "student.layers.0",
        "the_teacher.layers.0",
    ]
    assert modules_alike("layers.0", ["", "layers", "layers.1"]) == []
