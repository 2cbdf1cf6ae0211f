"""Classifiers of timm and torchvision by name."""

import sys

import pytest

from autosync.errors import AutosyncError, InvalidInput, NotFound, NotSupported
from autosync.importing import import_module
from autosync.importing.vision_libraries import load_library_model
from tests.autosync.importing.graph_contract import assert_graph_contract
from tests.torchvision_operators import declare_operators

declare_operators()

BATCH = 2


@pytest.fixture
def libraries() -> None:
    pytest.importorskip("timm")
    pytest.importorskip("torchvision")


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("target", "parameters"),
    [
        ("timm:resnet18", 11_689_512),
        ("timm:inception_v3", 23_834_568),
        ("timm:vit_tiny_patch16_224.augreg_in21k", 9_740_115),
        ("torchvision:mobilenet_v2", 3_504_872),
        ("torchvision:googlenet", 13_004_888),
    ],
)
def test_named_classifiers_have_the_published_parameters(target: str, parameters: int) -> None:
    found = load_library_model(target, BATCH)
    assert {p.device.type for p in found.module.parameters()} == {"meta"}
    graph = import_module(
        found.module, found.example_inputs, found.loss, name="named", batch_size=BATCH
    )
    assert graph.parameters == parameters
    assert_graph_contract(graph, BATCH)


@pytest.mark.parametrize("target", ["timm:hf-hub:someone/model", "timm:local-dir:/tmp", "timm:"])
def test_what_is_no_name_is_refused_before_a_library_is_loaded(target: str) -> None:
    with pytest.raises(InvalidInput, match="names no model") as caught:
        load_library_model(target, BATCH)
    assert caught.value.remedy


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("target", "kind", "why"),
    [
        ("timm:resnet5", NotFound, "timm has no model 'resnet5'"),
        ("torchvision:resnet5", NotFound, "resnet50"),
        ("torchvision:fcn_resnet50", NotSupported, "is no classifier"),
        ("torchvision:raft_small", NotSupported, "is no classifier"),
    ],
)
def test_others_are_refused_by_name(target: str, kind: type[AutosyncError], why: str) -> None:
    with pytest.raises(kind) as caught:
        load_library_model(target, BATCH)
    assert why in str(caught.value)
    assert caught.value.remedy


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(NotSupported, match="timm does not load"):
        load_library_model("timm:resnet18", BATCH)
