"""What every importer's graph holds to, whatever it was imported from."""

from autosync.documents import from_json, to_json
from autosync.graph import ModelGraph
from autosync.profiling import estimate_profile


def assert_graph_contract(graph: ModelGraph, batch_size: int) -> None:
    """The orders agree, every variable has a consumer, and a prediction can begin with it."""
    assert graph.batch_size == batch_size
    assert from_json(ModelGraph, to_json(graph)) == graph
    place = {operation: i for i, operation in enumerate(graph.backward_order)}
    ends = [place[graph.gradient_after[variable]] for variable in graph.gradient_order]
    assert ends == sorted(ends)
    for variable, consumers in enumerate(graph.consumers()):
        assert graph.gradient_after[variable] in consumers
    assert sum(operation.forward_flops for operation in graph.operations) > 0
    flops = [(o.forward_flops, o.backward_flops) for o in graph.operations]
    assert all(backward <= 2.5 * forward for forward, backward in flops)  # fused attention
    assert all(forward <= backward for forward, backward in flops if backward)
    assert any(operation.has_batch_dimension for operation in graph.operations)
    assert estimate_profile(graph, "v100").compute_seconds > 0
