"""Prints seconds of a forward and backward pass of models whose structure depends on the input:
batched by frontiers (autosync.extensions.dynamic), a vertex at a time, and by torch's packed LSTM.

python -m benchmarks.dynamic_models
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from autosync.extensions.dynamic.input_graphs import InputGraphs, chains
from autosync.extensions.dynamic.lstm import ChildSumTreeLSTM, SequenceLSTM
from benchmarks.output import option_parser
from tests.autosync.extensions.dynamic.drawn_graphs import random_binary_trees
from tests.autosync.extensions.dynamic.unbatched import evaluate_unbatched

INPUTS = 128
SAMPLES, CELLS = (16, 64), (64, 256)
LONGEST = 40
"""Words of a sentence."""
REPEATS = 7

Evaluate = Callable[[], Tensor]


def on_trees(graphs: InputGraphs, cells: int) -> dict[str, Evaluate]:
    external = torch.randn(graphs.vertices, INPUTS)
    model = ChildSumTreeLSTM(INPUTS, cells)
    return {
        "frontiers": lambda: model(anew(graphs), external),
        "a vertex at a time": lambda: evaluate_unbatched(model, graphs, external),
    }


def on_sequences(lengths: list[int], cells: int) -> dict[str, Evaluate]:
    graphs = chains(lengths)
    external = torch.randn(graphs.vertices, INPUTS)
    model = SequenceLSTM(INPUTS, cells)
    torchs = nn.LSTM(INPUTS, cells)

    def packed() -> Tensor:
        sequences = pack_sequence(list(external.split(lengths)), enforce_sorted=False)
        states: Tensor = torchs(sequences)[0].data
        return states

    return {
        "frontiers": lambda: model(anew(graphs), external),
        "a vertex at a time": lambda: evaluate_unbatched(model, graphs, external),
        "torch's packed LSTM": packed,
    }


def anew(graphs: InputGraphs) -> InputGraphs:
    """Without its schedule, which every batch of training computes once."""
    return InputGraphs(graphs.first_child, graphs.child, graphs.graph)


def measured(ways: dict[str, Evaluate]) -> dict[str, float]:
    """Median seconds of a pass each, in turns after one to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(1 + REPEATS):
        for name, evaluate in ways.items():
            begun = time.perf_counter()
            evaluate().square().sum().backward()
            if repeat:
                seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(each) for name, each in seconds.items()}


def report(title: str, found: dict[str, float]) -> None:
    best = found["frontiers"]
    parts = (f"{name} {1e3 * s:.1f} ms ({s / best:.2f} x)" for name, s in found.items())
    print(f"{title}: {', '.join(parts)}", flush=True)


def main() -> None:
    option_parser(__doc__).parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32")
    for samples in SAMPLES:
        rng = np.random.default_rng(samples)
        graphs = random_binary_trees(rng, samples, LONGEST)
        lengths = rng.integers(1, LONGEST + 1, size=samples).tolist()
        for cells in CELLS:
            size = f"{samples} samples, {cells} cells"
            trees = measured(on_trees(graphs, cells))
            report(f"tree-LSTM, {graphs.vertices} vertices, {size}", trees)
            sequences = measured(on_sequences(lengths, cells))
            report(f"LSTM, {sum(lengths)} words, {size}", sequences)


if __name__ == "__main__":
    main()
