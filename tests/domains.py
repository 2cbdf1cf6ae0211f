"""Small domains built by hand, for tests that need no import of a model."""

from dataclasses import replace

from autosync.cluster import Cluster, Device, Node
from autosync.domain import Domain, Optimizer, Profile
from autosync.graph import ModelGraph, Operation, Variable


def chain_graph(
    shapes: tuple[tuple[int, ...], ...] = ((64, 32), (64,), (128, 64), (128,), (10, 128), (10,)),
    sparse: tuple[int, ...] = (),
    factor_rows: int = 0,
) -> ModelGraph:
    """A chain in which operation i consumes variable i; gradients get ready back to front."""
    count = len(shapes)
    variables = tuple(
        Variable(
            f"v{i}",
            shape,
            sparse=i in sparse,
            touched_rows=2 if i in sparse else 0,
            factor_rows=factor_rows if len(shape) == 2 and i not in sparse else 0,
        )
        for i, shape in enumerate(shapes)
    )
    operations = tuple(
        Operation(f"op{i}", "linear", 10**6, 2 * 10**6, 4096, True, (i - 1,) if i else (), (i,))
        for i in range(count)
    )
    backward = tuple(reversed(range(count)))
    return ModelGraph("chain", 8, operations, variables, backward, backward, tuple(range(count)))


def grid_cluster(
    nodes: int = 4, ranks_per_node: int = 1, gbps: tuple[float, ...] | float = 0.956
) -> Cluster:
    """`nodes` CPU nodes of `ranks_per_node` devices; one bandwidth, or one per node. Messages do
    not slow compute."""
    rates = gbps if isinstance(gbps, tuple) else (gbps,) * nodes
    return Cluster(
        "grid",
        tuple(
            Node(f"10.77.0.{i + 1}", (Device("cpu", ranks_per_node),), rate, 20.0)
            for i, rate in enumerate(rates)
        ),
        overlap_slowdown=0.0,
    )


def domain_of(
    graph: ModelGraph | None = None,
    cluster: Cluster | None = None,
    operation_seconds: float = 1e-3,
    optimizer: Optimizer | None = None,
) -> Domain:
    """Every operation takes `operation_seconds` forward and twice that backward."""
    graph = graph or chain_graph()
    count = len(graph.operations)
    profile = Profile(
        "cpu",
        graph.batch_size,
        (operation_seconds,) * count,
        (2 * operation_seconds,) * count,
        0.0,
        "estimated",
        "made up for a test",
    )
    return Domain(graph, cluster or grid_cluster(), profile, optimizer or Optimizer())


def layered_graph(shapes: tuple[tuple[int, ...], ...] = ((64, 32),) * 5) -> ModelGraph:
    """A chain of blocks (`layers.0.weight`); its first and last variable are the model's own."""
    graph = chain_graph(shapes)
    inner = (f"layers.{i}.weight" for i in range(len(shapes) - 2))
    names = ("first.weight", *inner, "last.weight")
    variables = tuple(
        replace(variable, name=name) for variable, name in zip(graph.variables, names, strict=True)
    )
    return replace(graph, variables=variables)
