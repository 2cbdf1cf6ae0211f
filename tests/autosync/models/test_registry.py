import subprocess
import sys

import pytest
import torch

import autosync.bundled_data
from autosync.documents import to_json
from autosync.errors import InvalidInput, NotFound
from autosync.models import BUNDLED, bundled, graph_file, spec_of
from autosync.models.bert import BertPretraining
from autosync.models.model_specs import import_bundled

# Published: torchvision's model pages, the BERT and GPT-2 releases; DeAR table I counts 161, 206
# and 398 tensors for ResNet-50, BERT-base and BERT-large. DLRM has the 33,762,577 categories of
# Criteo's Kaggle data in 16 columns each (540 million parameters, arXiv 1906.00091).
PARAMETERS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "vgg16": 138_357_544,
    "densenet121": 7_978_856,
    "bert_base": 110_106_428,
    "bert_large": 336_226_108,
    "gpt2": 124_439_808,
    "dlrm": 33_762_577 * 16 + 475_985,
}
TENSORS = {"resnet50": 161, "vgg16": 32, "bert_base": 206, "bert_large": 398}


@pytest.mark.parametrize("name", BUNDLED)
def test_parameters_are_counted_right(name: str) -> None:
    graph = bundled(name)
    assert graph.parameters == PARAMETERS.get(name, graph.parameters) == BUNDLED[name].parameters
    assert len(graph.variables) == TENSORS.get(name, len(graph.variables))
    assert graph.batch_size == BUNDLED[name].batch_size
    assert graph.name == name


@pytest.mark.parametrize(("name", "millions"), [("transformer", 62), ("ncf_dense", 122)])
def test_sizes_the_supplement_states(name: str, millions: int) -> None:
    assert bundled(name).parameters / 1e6 == pytest.approx(millions, rel=0.015)


def test_bert_without_its_heads_has_the_usual_count() -> None:
    with torch.device("meta"):
        encoder = BertPretraining(12, 768, 12).encoder
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 109_482_240


@pytest.mark.parametrize("name", BUNDLED)
def test_stored_graphs_are_what_an_import_gives(name: str) -> None:
    """Run scripts/write_model_graphs.py after changing the importer or a model."""
    again = to_json(import_bundled(BUNDLED[name], BUNDLED[name].batch_size)) + "\n"
    assert graph_file(name).read_text() == again


def test_stored_graphs_have_valid_orders() -> None:
    for name in BUNDLED:
        graph = bundled(name)
        place = {operation: i for i, operation in enumerate(graph.backward_order)}
        ends = [place[graph.gradient_after[v]] for v in graph.gradient_order]
        assert ends == sorted(ends), name
        edges = ((i, source) for i, o in enumerate(graph.operations) for source in o.inputs)
        assert all(source < i for i, source in edges), name
        assert all(graph.consumers()), name


@pytest.mark.parametrize("name", ["bert_base", "bert_large", "gpt2", "transformer"])
def test_tied_embeddings_are_ready_last(name: str) -> None:
    graph = bundled(name)
    last = graph.gradient_order[-1]
    assert len(graph.consumers()[last]) >= 2
    assert graph.variables[last].size_bytes == max(v.size_bytes for v in graph.variables)


def test_ncf_differs_in_the_sparsity_of_its_embeddings_only() -> None:
    sparse, dense = bundled("ncf_sparse"), bundled("ncf_dense")
    tables = [v for v in sparse.variables if v.sparse]
    assert len(tables) == 4
    assert {v.touched_rows for v in tables} == {256}
    assert not any(v.sparse or v.touched_rows for v in dense.variables)
    assert [v.shape for v in sparse.variables] == [v.shape for v in dense.variables]


def test_dlrm_looks_up_one_row_a_table() -> None:
    tables = [v for v in bundled("dlrm").variables if v.sparse]
    assert len(tables) == 26
    assert all(v.touched_rows == min(v.shape[0], 2048) for v in tables)
    assert sum(v.shape[0] for v in tables) == 33_762_577


def test_another_batch_size_scales_what_depends_on_it() -> None:
    small = bundled("bert-base", 8)
    stored = bundled("bert_base")
    assert small.batch_size == 8
    assert [v.name for v in small.variables] == [v.name for v in stored.variables]
    for ours, theirs in zip(small.operations, stored.operations, strict=True):
        factor = 4 if theirs.has_batch_dimension else 1
        assert ours.output_bytes * factor == theirs.output_bytes
        assert ours.forward_flops * 4 == theirs.forward_flops


@pytest.mark.parametrize(("name", "millions"), [("bert_3l", 11), ("bert_6l", 36)])
def test_narrow_berts(name: str, millions: int) -> None:
    """The supplement's BERT-3L and BERT-6L are narrower than 768."""
    assert bundled(name).parameters / 1e6 == pytest.approx(millions, rel=0.06)


def test_unknown_names_and_batch_sizes() -> None:
    with pytest.raises(NotFound, match="resnet50"):
        spec_of("resnet51")
    with pytest.raises(InvalidInput, match="at least 1"):
        bundled("resnet50", 0)


def test_missing_data_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(autosync.bundled_data, "__file__", f"{tmp_path}/autosync/bundled_data.py")
    with pytest.raises(NotFound, match="datasets"):
        bundled("resnet50")


def test_reading_a_stored_graph_loads_no_torch() -> None:
    code = (
        "import sys; from autosync.models import bundled; bundled('resnet50'); "
        "import autosync.profiling, autosync.cluster_file; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
