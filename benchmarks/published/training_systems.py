"""Published training runs: their clusters, models and strategies as this project states them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from autosync.cluster import Cluster, Device, Node, Transport
from autosync.cluster.link_rates import RDMA_SHARE
from autosync.graph import DType, ModelGraph, Operation, Variable
from autosync.models import bundled
from benchmarks.output import measurements


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A published run. seconds: of one update, all accumulated batches included. software: what
    its table says of frameworks and containers. recomputes: under activation checkpointing."""

    system: str
    model: str
    engine: str
    precision: str
    batch_size: int
    sequence: int
    accumulate: int
    gpus: int
    gpus_per_node: int
    seconds: float
    software: str
    recomputes: bool

    @property
    def series(self) -> tuple[object, ...]:
        """Runs of one series differ in scale and in how many batches they accumulate only."""
        return (
            self.system, self.model, self.engine, self.precision, self.batch_size, self.sequence,
            self.software, self.recomputes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class System:
    """What a row's system is, where its table does not say: from its maker's data sheet.

    gpu: device type. gpus: in a node. nics, nic_gbps: of a node. link_gbps: payload inside.
    """

    gpu: str
    gpus: int
    nics: int
    nic_gbps: float
    transport: Transport
    link_gbps: float
    nvswitch: bool = True


SYSTEMS = {
    "DGX A100 80GB": System("a100-80gb", 8, 8, 200.0, "infiniband", 1880.0),
    "DGX A100 40GB": System("a100", 8, 8, 200.0, "infiniband", 1880.0),
    "DGX-1": System("v100", 8, 4, 100.0, "infiniband", 1032.0, nvswitch=False),
    "DGX-2H": System("v100", 16, 8, 100.0, "infiniband", 1032.0),
    "MosaicML platform A100-80GB": System("a100-80gb", 8, 8, 200.0, "roce", 1880.0),
    "MosaicML platform A100-40GB": System("a100", 8, 8, 200.0, "roce", 1880.0),
    "8 H100 a node": System("h100", 8, 8, 400.0, "infiniband", 2808.0),
}
"""By the beginning of a row's system. MosaicML: 1,600 Gbit/s a node, RoCE (its table's title). Of
H100 there are no rows; `search.gpu_scale` has them."""

CUBE_MESH = {2: 1 / 3, 4: 2 / 3}
"""Of its six NVLinks a V100 of a DGX-1 has two to its nearest neighbour, and four to the three GPUs
of its half (white paper)."""

MODELS = {"BERT-large pretraining": "bert_large", "ResNet-50 v1.5": "resnet50"}
"""Bundled graphs of the models, by name."""

MPT_SHAPES = {
    "MPT-125m": (12, 768), "MPT-350m": (24, 1024), "MPT-760m": (24, 1536), "MPT-1b": (24, 2048),
    "MPT-3b": (32, 2560), "MPT-7b": (32, 4096), "MPT-13b": (40, 5120), "MPT-30b": (48, 7168),
    "MPT-70b": (80, 8192), "Transformer-XL base": (16, 512),
}  # fmt: skip
"""Blocks and width of decoders (llm-foundry, scripts/train/yamls/pretrain; NVIDIA's example)."""
VOCABULARIES = {"Transformer-XL base": 267735}
VOCABULARY = 50368
"""Tokens that a model knows, where `VOCABULARIES` does not say."""
SEQUENCES = {"Transformer-XL base": 192}
"""Tokens of a sample where the table has none (NVIDIA's example, --tgt_len)."""


def read_training_rows() -> list[TrainingRow]:
    """Rows of systems and models that this module knows, with a stated batch."""
    found = [_row(record) for record in measurements("training.csv") if _known(record)]
    return [row for row in found if row is not None]


def _known(record: dict[str, str]) -> bool:
    model = record["model"]
    return _system_named(record["system"]) is not None and (model in MODELS or model in MPT_SHAPES)


def _system_named(name: str) -> System | None:
    return next((system for begin, system in SYSTEMS.items() if name.startswith(begin)), None)


def _row(record: dict[str, str]) -> TrainingRow | None:
    batch, accumulate = _number(record["batch_per_gpu"]), _number(record["grad_accum"]) or 1
    if "accumulated batch" in record["notes"] and "holds the accumulated" in record["notes"]:
        batch = batch // accumulate  # of this table, the column holds all batches together
    gpus, sequence = int(record["gpus"]), _number(record["sequence"])
    sequence = sequence or SEQUENCES.get(record["model"], 0)
    samples = float(record["samples_per_s"] or 0.0)
    if record["tokens_per_s"] and sequence:
        samples = float(record["tokens_per_s"]) / sequence
    if not batch or not samples:
        return None
    return TrainingRow(
        system=record["system"],
        model=record["model"],
        engine=record["engine"],
        precision=record["precision"],
        batch_size=batch,
        sequence=sequence,
        accumulate=accumulate,
        gpus=gpus,
        gpus_per_node=int(record["gpus_per_node"]),
        seconds=batch * accumulate * gpus / samples,
        software=record["notes"].partition("table ")[0].partition("; act")[0] + record["source"],
        recomputes="checkpointing True" in record["notes"],
    )


def _number(text: str) -> int:
    """The number that a cell begins with; 0 without one."""
    digits = text.split(" ")[0]
    return int(float(digits)) if digits.replace(".", "", 1).isdigit() else 0


@lru_cache
def cluster_of(row_system: str, gpus: int) -> Cluster:
    """So many GPUs of a system, two or more."""
    system = _system_named(row_system)
    assert system is not None
    each, nodes = min(gpus, system.gpus), ceil(gpus / system.gpus)
    meshed = 1.0 if system.nvswitch else CUBE_MESH.get(each, 1.0)
    return Cluster(
        f"{row_system}, {gpus} GPUs",
        tuple(
            Node(
                f"10.{i // 62500}.{i // 250 % 250}.{i % 250 + 1}",
                (Device(system.gpu, each),),
                bandwidth_gbps=system.nics * system.nic_gbps * RDMA_SHARE,
                intra_bandwidth_gbps=system.link_gbps * meshed,
                latency_us=5.0,
                nics=system.nics,
                nic_gbps=system.nic_gbps,
                nvswitch=system.nvswitch,
                rails=True,
            )
            for i in range(nodes)
        ),
        backend="nccl",
        transport=system.transport,
    )


@lru_cache
def graph_of(model: str, batch_size: int, sequence: int, precision: str, engine: str) -> ModelGraph:
    """The model's graph, with gradients of the type in which the engine sends them."""
    if model in MODELS:
        graph = bundled(MODELS[model], batch_size)
    else:
        graph = decoder(model, *MPT_SHAPES[model], batch_size, sequence)
    dtype = gradient_dtype(precision, engine)
    variables = tuple(replace(variable, dtype=dtype) for variable in graph.variables)
    return replace(graph, variables=variables)


def gradient_dtype(precision: str, engine: str) -> DType:
    """apex O2 and Horovod under automatic mixed precision send float16 (NVIDIA's examples turn
    fp16 compression on), PURE bfloat16; all others float32."""
    if precision == "bf16":
        return "bfloat16"
    if precision == "amp" and engine in ("apex ddp", "horovod"):
        return "float16"
    return "float32"


def decoder(name: str, blocks: int, width: int, batch_size: int, sequence: int) -> ModelGraph:
    """A decoder of `blocks` blocks by hand: a token table, and in each block four matrices with
    their vectors. FLOPs are of its matrix products; each block recomputes nothing."""
    tokens, known = batch_size * sequence, VOCABULARIES.get(name, VOCABULARY)
    variables: list[Variable] = [Variable("transformer.wte.weight", (known, width))]
    operations: list[Operation] = [
        Operation("wte", "embedding", 0, 0, tokens * width * 2, True, (), (0,))
    ]

    def add(
        operation: str, kind: str, flops: int, shapes: tuple[tuple[str, int, int], ...]
    ) -> None:
        first = len(variables)
        variables.extend(
            Variable(label, (rows, columns) if columns else (rows,))
            for label, rows, columns in shapes
        )
        operations.append(
            Operation(
                operation, kind, flops, 2 * flops, tokens * width * 2, True,
                (len(operations) - 1,), tuple(range(first, len(variables))),
            )
        )  # fmt: skip

    for block in range(blocks):
        at = f"transformer.blocks.{block}"
        parts = (
            ("attn.Wqkv", 3 * width, width), ("attn.out_proj", width, width),
            ("ffn.up_proj", 4 * width, width), ("ffn.down_proj", width, 4 * width),
        )  # fmt: skip
        for label, rows, columns in parts:
            shapes = ((f"{at}.{label}.weight", rows, columns), (f"{at}.{label}.norm", width, 0))
            add(f"{at}.{label}", "linear", 2 * tokens * rows * columns, shapes)
            if label == "attn.Wqkv":
                flops = 2 * tokens * sequence * width
                add(f"{at}.attention", "scaled_dot_product_attention", flops, ())
    add("lm_head", "linear", 2 * tokens * known * width, (("transformer.norm_f", width, 0),))
    last = range(len(operations))
    of = {variable: place for place, each in enumerate(operations) for variable in each.variables}
    order = tuple(sorted(range(len(variables)), key=lambda v: (-of[v], -v)))
    return ModelGraph(
        name, batch_size, tuple(operations), tuple(variables), tuple(reversed(last)), order,
        tuple(of[variable] for variable in range(len(variables))),
    )  # fmt: skip
