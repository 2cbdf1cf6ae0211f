"""Fewer bytes: sufficient factors, touched rows, and hierarchy inside nodes, beside DDP.

python -m benchmarks.runtime.sent_bytes [--quick] [--json FILE]

Factors and rows are to come within 10 % of compute and to be at least 1.8 times as fast as DDP
where DDP is bound by communication; hierarchical all-reduce at least 1.3 times on 2 nodes x 2.
The bound here is compute alone (for the hierarchy: the limit over all-reduces of any kind).
"""

from dataclasses import replace

from autosync.allowed import Allowed
from autosync.graph import ModelGraph
from autosync.search.designs import known_designs
from autosync.search.designs.building_blocks import assemble, collective
from autosync.simulator.limit import iteration_limit
from autosync.strategy import AllReduce, Schedule
from autosync.units import MIB
from benchmarks.emulated import SCALES, Scales, cluster, domain_at, open_testbed
from benchmarks.measure import Report, Way, arguments, ddp_way, paired

HIERARCHY = Allowed(parameter_server=False, factors=False)


def factors(report: Report, rounds: int) -> None:
    domain = domain_at("vgg16", 2.0)
    ways = [
        ddp_way(domain),
        Way("factors, sliced all-reduce", known_designs.factors_all_reduce(domain)),
        Way("factors, reduce-scatter", known_designs.factors_dear(domain)),
    ]
    with open_testbed(domain, SCALES["vgg16"]) as pool:
        report.note(pool.description)
        bound = domain.profile.compute_seconds
        case = "VGG-16 (sufficient factors), rho = 2, 4 nodes"
        report.add(paired(pool, domain, case, ways, rounds, 3, bound, warmup=1))


def densified(graph: ModelGraph) -> ModelGraph:
    """The same model whose embeddings make dense gradients, as `nn.Embedding` does by default."""
    variables = tuple(replace(v, sparse=False, touched_rows=0) for v in graph.variables)
    return replace(graph, variables=variables)


def rows(report: Report, rounds: int) -> None:
    """Rows beside DDP on the same sparse gradients, and beside DDP on dense ones."""
    sparse = domain_at("ncf_sparse", 2.0)
    dense = replace(sparse, graph=densified(sparse.graph))
    bound = sparse.profile.compute_seconds
    case = "NCF (embeddings of 491 MB), rho = 2 if dense, 4 nodes"
    ways = [
        ddp_way(sparse),
        Way("touched rows gathered", known_designs.all_reduce_25mb(sparse)),
        Way("touched rows to owners", known_designs.parallax(sparse)),
    ]
    with (
        open_testbed(sparse, SCALES["ncf_sparse"]) as pool,
        open_testbed(dense, SCALES["ncf_sparse"]) as dense_pool,
    ):
        report.note(pool.description)
        found = paired(dense_pool, dense, case, [ddp_way(dense)], rounds, 3, bound, warmup=1)
        others = paired(pool, sparse, case, ways, rounds, 3, bound, warmup=1)
    reference = found[0].step_seconds
    report.add(
        [
            replace(found[0], way="DDP, dense gradients"),
            *(
                replace(row, way=name, ratio=row.step_seconds / reference)
                for row, name in zip(
                    others,
                    ("DDP, sparse gradients", *(way.name for way in ways[1:])),
                    strict=True,
                )
            ),
        ]
    )
    report.note("NCF: x ref is to DDP with dense gradients; p10, p90 to DDP with sparse ones")


def hierarchy(report: Report, rounds: int) -> None:
    domain = domain_at("resnet50", 2.0, cluster(2, 2))
    scales = Scales(1 / 16, 8, 4)
    plain = collective(domain, AllReduce(0, "hierarchical"))
    sliced = Schedule("priority", slice_bytes=4 * MIB, overlap_forward=True)
    ways = [
        ddp_way(domain),
        Way("hierarchical, 25 MiB", known_designs.hierarchical_all_reduce(domain)),
        Way(
            "hierarchical, 4 MiB, priority",
            assemble(domain, plain, schedule=sliced, limit_bytes=5 * MIB),
        ),
    ]
    with open_testbed(domain, scales) as pool:
        report.note(pool.description)
        bound = iteration_limit(domain, HIERARCHY).seconds
        case = "ResNet-50 (hierarchy), rho = 2, 2 nodes x 2 ranks"
        report.add(paired(pool, domain, case, ways, rounds, 3, bound, warmup=1))


def main() -> None:
    given = arguments(__doc__)
    report = Report("Fewer bytes: factors, rows, hierarchy")
    rounds = 2 if given.quick else 5
    hierarchy(report, rounds)
    factors(report, rounds)
    rows(report, rounds)
    report.finish(given.json)


if __name__ == "__main__":
    main()
