"""Files of other systems: AutoDist's, ONNX, traces, lists of hosts, configurations."""

import json
from dataclasses import asdict, replace

from autosync.domain import Domain
from autosync.importing.transformers_config import load_transformers_config
from autosync.interop.autodist_graph import read_graph_item
from autosync.interop.autodist_strategy import export_strategy, import_strategy
from autosync.interop.gpu_topology import read_topology
from autosync.interop.host_clusters import HostHardware, cluster_of_hosts
from autosync.interop.host_list import Host, expand_counts, expand_nodelist, read_hostfile
from autosync.interop.nccl_tests import Stated, merged_curves, read_nccl_tests
from autosync.interop.onnx_graph import read_onnx_graph
from autosync.interop.resource_spec import Hardware, read_resource_spec
from autosync.interop.trace_profile import read_trace_profile
from autosync.search.designs.known_designs import all_reduce_chunk128, ps_load_balanced
from autosync.simulator.published_dataset import read_facts
from benchmarks.fuzz.document_parsers import DOMAIN, file_of, use_graph
from benchmarks.fuzz.fuzzed_parser import FuzzedParser, used
from tests.autosync.interop.chakra_files import linear_step
from tests.autosync.interop.onnx_files import model, node, value, weight
from tests.autosync.interop.onnx_files import numbers as constant
from tests.autosync.interop.test_gpu_topology import DGX_A100
from tests.autosync.interop.test_graph_items import Written
from tests.autosync.interop.test_kineto import of_linear
from tests.autosync.interop.test_nccl_tests import NEW, OLD_BROADCAST
from tests.autosync.interop.test_resource_specs import TWO_NODES
from tests.domains import grid_cluster
from tests.torchvision_operators import declare_operators

T4 = Hardware("t4", 48.0)
BATCH = 4
PORTS = HostHardware(25.0, "a100", 8, 300.0)
HOSTFILE = (
    b"# workers\nnode1 slots=4 max_slots=8\nnode2:2\nnode3\nnode3\nfe80::1\n10.0.0.4 slots=1\n"
)
NODELISTS = (b"gpu[01-04,07],login", b"rack[1-2]node[001-003]", b"a,b,c")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}


def read_specification(data: bytes) -> None:
    cluster = read_resource_spec(as_text(data), "spec", T4).cluster
    used(cluster.id)


def read_hosts(data: bytes) -> None:
    used(cluster_of_hosts(read_hostfile(as_text(data), "hosts")[0], PORTS, "hosts").id)


def read_nodelist(data: bytes) -> None:
    hosts = [Host(address) for address in expand_nodelist(as_text(data))]
    used(cluster_of_hosts(hosts, PORTS, "Slurm").id)


def read_counts(data: bytes) -> None:
    expand_counts(as_text(data))


def read_topo(data: bytes) -> None:
    used(read_topology(as_text(data), "topo").intra_bandwidth_gbps("a100"))


def read_log(data: bytes) -> None:
    curves = merged_curves(read_nccl_tests(as_text(data), "log", Stated("all_reduce", 4, 2)))
    used(replace(grid_cluster(), curves=curves).id)


def as_text(data: bytes) -> str:
    """What a command reads of it: it has refused what is no UTF-8."""
    return data.decode("utf-8", "replace")


def read_item(data: bytes) -> None:
    use_graph(read_graph_item(data, "item", 16, 5).graph)


def read_onnx(data: bytes) -> None:
    use_graph(read_onnx_graph(data, "exported", BATCH, 5).graph)


def read_autodist_strategy(data: bytes) -> None:
    strategy = import_strategy(data, DOMAIN, allow_lossy=True, allow_inexact=True)
    used(strategy.id)


def read_config(data: bytes) -> None:
    load_transformers_config(file_of(data, "config.json"), 2, 8)


def read_published_facts(data: bytes) -> None:
    read_facts(file_of(data, "facts.yaml"))


def file_parsers() -> list[FuzzedParser]:
    declare_operators()  # transformers imports torchvision where it is installed
    graph, kineto = of_linear(2)
    chakra = linear_step(2)

    def read_trace(data: bytes) -> None:
        profile = read_trace_profile(data, graph, "v100").profile
        used(Domain(graph, grid_cluster(), profile).timing)

    designs = (all_reduce_chunk128, ps_load_balanced)
    strategies = [export_strategy(design(DOMAIN), DOMAIN) for design in designs]
    facts = json.dumps({"models": {"m": {"batch_size": 8}}, "clusters": {"cluster-A": asdict(T4)}})
    return [
        FuzzedParser("autodist-resource-spec", "lines", [TWO_NODES.encode()], read_specification),
        FuzzedParser("hostfile", "lines", [HOSTFILE], read_hosts),
        FuzzedParser("slurm-nodelist", "bytes", NODELISTS, read_nodelist),
        FuzzedParser("slurm-counts", "bytes", [b"4(x2),3", b"1,2,3"], read_counts),
        FuzzedParser("gpu-topology", "lines", [DGX_A100.encode()], read_topo),
        FuzzedParser("nccl-tests", "lines", [NEW.encode(), OLD_BROADCAST.encode()], read_log),
        FuzzedParser("autodist-graph-item", "protobuf", [Written().bytes()], read_item),
        FuzzedParser("autodist-strategy", "protobuf", strategies, read_autodist_strategy),
        FuzzedParser("onnx", "protobuf", onnx_files(), read_onnx),
        FuzzedParser("kineto-trace", "json", [kineto], read_trace),
        FuzzedParser("chakra-json", "json", [json.dumps(chakra).encode()], read_trace),
        FuzzedParser("config-json", "json", [json.dumps(CONFIG).encode()], read_config, share=0.05),
        FuzzedParser("dataset-facts", "json", [facts.encode()], read_published_facts),
    ]


def onnx_files() -> list[bytes]:
    """Each kind of node that shapes are computed of, several times."""

    words = (
        node("Gather", "table words", "embedded"),
        node("MatMul", "embedded w", "y"),
        node("Shape", "y", "shape"),
        node("Gather", "shape zero", "first"),
        node("Mul", "first two", "doubled"),
        node("Concat", "doubled minus", "target", axis=0),
        node("Reshape", "y target", "flat"),
        node("Split", "flat", "left right", axis=-1),
        node("Unsqueeze", "left", "wide", axes=(0,)),
        node("Transpose", "wide", "turned", perm=(0, 2, 1)),
        node("Slice", "turned zero two", "cut"),
        node("ReduceMean", "cut", "mean", axes=(-1,), keepdims=0),
        node("LSTM", "embedded v r", "states last"),
    )
    images = (
        node("Conv", "image kernel", "seen", pads=(1, 1, 1, 1), strides=(2, 2)),
        node("BatchNormalization", "seen scale bias average spread", "normal"),
        node("MaxPool", "normal", "pooled", kernel_shape=(2, 2), strides=(2, 2)),
        node("ConvTranspose", "pooled up", "large", strides=(2, 2)),
        node("GlobalAveragePool", "large", "mean"),
        node("Flatten", "mean", "rows"),
        node("Gemm", "rows last", "scores", transB=1),
        node("Frobnicate", "scores", "odd"),
    )
    constants = (constant("zero", 0), constant("two", 2), constant("minus", -1))
    text_weights = (
        weight("table", 50, 8),
        weight("w", 8, 16),
        weight("v", 1, 16, 8),
        weight("r", 1, 16, 4),
    )
    channels = tuple(weight(name, 8) for name in ("scale", "bias", "average", "spread"))
    image_weights = (
        weight("kernel", 8, 3, 3, 3),
        *channels,
        weight("up", 8, 4, 2, 2),
        weight("last", 5, 4),
    )
    return [
        model(words, (value("words", ("batch", "tokens"), 7),), (*text_weights, *constants)),
        model(images, (value("image", ("batch", 3, 16, 16)),), image_weights),
    ]
