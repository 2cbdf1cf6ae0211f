import gzip
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import autosync.bundled_data
from autosync.documents import to_json
from autosync.errors import InvalidInput, NotFound, NotSupported
from autosync.models import BUNDLED, bundled, graph_file, spec_of
from autosync.models.bert import BertPretraining
from benchmarks.bundled_models import torch_flops
from benchmarks.models import build, import_bundled
from scripts import write_model_graphs
from tests.autosync.importing.graph_contract import assert_graph_contract
from tests.long_parameters import long_after

# Published: torchvision's and timm's model pages, the releases of BERT, GPT-2, XLNet and Llama;
# GoogLeNet and VGG-19 for 21,841 classes as Caffe and Poseidon count them.
PARAMETERS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnet200": 64_673_832,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "densenet121": 7_978_856,
    "densenet201": 20_013_928,
    "googlenet": 6_998_552,
    "inception_v3": 27_161_264 - 3_326_696,  # without the auxiliary classifier
    "inception_v4": 42_679_816,
    "mobilenet_v2": 3_504_872,
    "nasnet_large": 88_753_150,
    "vit_large": 304_326_632,
    "bert_base": 110_106_428,
    "bert_large": 336_226_108,
    "xlnet_large": 360_300_800,  # transformers' XLNetLMHeadModel of xlnet-large-cased
    "xlnet_48l": 687_800_576,  # the same of 48 layers
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "llama_1b": 1_235_814_400,
    "llama_7b": 6_738_415_616,
    # the 33,762,577 categories of Criteo's Kaggle data in 16 columns each (arXiv 1906.00091)
    "dlrm": 33_762_577 * 16 + 475_985,
}
# DeAR table I counts tensors. (Its Inception-v4 and DenseNet-201 have 449 and 604.)
TENSORS = {
    "resnet50": 161,
    "vgg16": 32,
    "bert_base": 206,
    "bert_large": 398,
    "densenet201": 604,
    "inception_v4": 449,
}
# Papers that state millions only: the AutoSync supplement, Poseidon, Sutskever et al. 2014, and
# Parallax (813.3 M sparse, 9.4 M dense); Criteo's Terabyte tables have 12.6 GB.
MILLIONS = {
    "transformer": 62,
    "ncf_dense": 122,
    "ncf_sparse": 122,
    "vgg19_22k": 229,
    "lstm_seq2seq": 384,
    "lm1b": 813.3 + 9.4,
    "dlrm_terabyte": 12_600 / 4,
}
REIMPORTED = (
    *("bert_3l", "vgg16", "ncf_sparse", "dlrm_terabyte", "lm1b"),
    *("resnet50", "googlenet", "mobilenet_v2", "transformer"),
)
"""One of most families, the quickest to import first; scripts/write_model_graphs.py --check does
all."""


def test_published_counts_are_of_bundled_models() -> None:
    assert {*PARAMETERS, *TENSORS, *MILLIONS} <= {*BUNDLED}


@pytest.mark.parametrize("name", BUNDLED)
def test_parameters_are_counted_right(name: str) -> None:
    graph = bundled(name)
    assert graph.parameters == PARAMETERS.get(name, graph.parameters) == BUNDLED[name].parameters
    stated = MILLIONS.get(name, graph.parameters / 1e6)
    assert graph.parameters / 1e6 == pytest.approx(stated, rel=0.015)
    assert len(graph.variables) == TENSORS.get(name, len(graph.variables))
    assert graph.batch_size == BUNDLED[name].batch_size
    assert graph.name == name


@pytest.mark.parametrize("name", BUNDLED)
def test_stored_variables_are_the_modules(name: str) -> None:
    with torch.device("meta"):
        module = build(name, 1)[0]
    made = [
        (key, tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for key, value in module.named_parameters()
    ]
    assert made == [(v.name, v.shape, v.dtype) for v in bundled(name).variables]


def test_bert_without_its_heads_has_the_usual_count() -> None:
    with torch.device("meta"):
        encoder = BertPretraining(12, 768, 12).encoder
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 109_482_240


@pytest.mark.parametrize("name", long_after(6, REIMPORTED))
def test_stored_graphs_are_what_an_import_gives(name: str) -> None:
    """Run scripts/write_model_graphs.py after changing the importer or a model."""
    again = to_json(import_bundled(name)) + "\n"
    assert gzip.decompress(graph_file(name).read_bytes()).decode() == again


def test_a_graph_that_is_not_stored_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(write_model_graphs, "FOLDER", tmp_path)
    monkeypatch.setattr(write_model_graphs, "graph_text", lambda spec: b"a graph")
    assert write_model_graphs.main(["--check", "vgg16"]) == 1
    assert "not what an import gives: vgg16" in capsys.readouterr().out


def test_stored_graphs_are_small() -> None:
    assert sum(graph_file(name).stat().st_size for name in BUNDLED) < 3_000_000


@pytest.mark.parametrize("name", ["mobilenet_v2", "nasnet_large"])
def test_grouped_convolutions_have_no_more_products_backward_than_twice_forward(name: str) -> None:
    """Torch's counter has up to twenty times as many."""
    convolutions = [o for o in bundled(name).operations if o.type == "convolution"]
    assert convolutions[0].backward_flops == convolutions[0].forward_flops, "images need none"
    assert all(o.backward_flops == 2 * o.forward_flops for o in convolutions[1:])


@pytest.mark.parametrize("name", ["llama_1b", "llama_7b"])
def test_memory_of_fused_attention_is_linear_in_tokens(name: str) -> None:
    """Llama-3.2-1B and Llama-2-7B on sentences of 2048 tokens: 2 products forward, 5 backward."""
    graph = bundled(name)
    layers, heads, width = (16, 32, 64) if name == "llama_1b" else (32, 32, 128)
    attention = [o for o in graph.operations if o.type == "scaled_dot_product_attention"]
    assert len(attention) == layers
    pairs = graph.batch_size * heads * 2048 * 2048
    assert {o.forward_flops for o in attention} == {2 * 2 * pairs * width}
    assert {o.backward_flops for o in attention} == {5 * 2 * pairs * width}
    assert {o.output_bytes for o in attention} == {pairs // 2048 * (2 * width + 4)}
    inside = [o for o in graph.operations if "attention." in o.name]
    assert max(o.output_bytes for o in inside) < pairs


@pytest.mark.parametrize(
    "name", long_after(3, ["resnet50", "lm1b", "dlrm", "vit_large", "xlnet_large"])
)
def test_flops_are_torchs(name: str) -> None:
    """Within 1 % at the least; benchmarks.bundled_models prints all."""
    torchs = torch_flops(BUNDLED[name], BUNDLED[name].batch_size)
    ours = sum(o.forward_flops + o.backward_flops for o in bundled(name).operations)
    assert ours == pytest.approx(torchs, rel=0.01)
    assert torchs > 0


@pytest.mark.parametrize("name", BUNDLED)
def test_stored_graphs_hold_to_the_contract(name: str) -> None:
    assert_graph_contract(bundled(name), BUNDLED[name].batch_size)


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


@pytest.mark.parametrize("name", long_after(1, [name for name in REIMPORTED if name != "lm1b"]))
def test_at_another_batch_size_a_graph_is_what_an_import_gives(name: str) -> None:
    batch_size = 2 * BUNDLED[name].batch_size
    assert bundled(name, batch_size) == import_bundled(name, batch_size)
    assert bundled(name, 3) == import_bundled(name, 3)


def test_a_model_of_one_batch_size_is_refused_at_others() -> None:
    """Its softmax samples 8192 words whatever the batch."""
    with pytest.raises(InvalidInput, match="must be 128"):
        bundled("lm1b", 64)


def test_a_model_of_which_the_package_has_the_graph_alone_is_not_built() -> None:
    with pytest.raises(NotSupported, match="not its code"):
        BUNDLED["nasnet_large"].build()


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
        "import autosync.profiling, autosync.cluster.cluster_file; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
