"""The dynamic models with nothing lazy: gradients of matrices in every frontier."""

from torch import nn

from autosync.extensions.dynamic.frontier_vertices import Vertices
from autosync.extensions.dynamic.sequence_lstm import SequenceLSTM
from autosync.extensions.dynamic.tree_lstm import ChildSumTreeLSTM


class EagerTreeLSTM(ChildSumTreeLSTM):
    """Its products are torch's own."""

    def vertex(self, vertices: Vertices) -> None:
        vertices.linear = nn.functional.linear  # type: ignore[method-assign, assignment]
        super().vertex(vertices)


class EagerSequenceLSTM(SequenceLSTM):
    """The same for sequences."""

    def vertex(self, vertices: Vertices) -> None:
        vertices.linear = nn.functional.linear  # type: ignore[method-assign, assignment]
        super().vertex(vertices)
