"""torch's own engines measured over predicted: DDP, FSDP2, ZeRO-2, HSDP and DDP's bf16 hook.

python -m benchmarks.torch_engines [--quick] [--json FILE]

A replay of ResNet-50 on emulated nodes whose message costs were probed first, with the timeline's
predictions at these costs. In host memory torch's fully_shard runs nothing beside compute; what it
does on GPUs is predicted from torch's sources and was not measured.
"""

from autosync.search.cluster_probe import probe_costs
from autosync.search.designs.design_table import torch_designs
from autosync.search.space import Space
from autosync.strategy import Encoding
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from benchmarks.emulated import SCALES, cluster, compare, domain_at, note_predictions
from benchmarks.measure import Report, Way, arguments, ddp_way

MODEL = "resnet50"
SPACE = Space(encodings=(Encoding(), Encoding("bf16")))


def measure(report: Report, nodes: int, ranks_per_node: int, rounds: int) -> None:
    scales = SCALES[MODEL]
    on = cluster(nodes, ranks_per_node)
    fit = probe_costs(TestbedLauncher(), on, scales.byte_scale, scales.time_scale, brief=True)
    domain = domain_at(MODEL, 1.0, fit.cluster)
    ways = [ddp_way(domain), *(Way(*named) for named in torch_designs(domain, SPACE))]
    case = f"{MODEL}, {nodes} x {ranks_per_node}"
    note_predictions(report, domain, ways, compare(report, domain, scales, case, ways, rounds))


def main() -> None:
    given = arguments(__doc__)
    report = Report("torch's own engines, measured over predicted")
    rounds = 2 if given.quick else 5
    measure(report, 4, 1, rounds)
    measure(report, 2, 2, rounds)
    report.finish(given.json)


if __name__ == "__main__":
    main()
