"""Well-known models in plain torch, and their imported graphs.

Imports the graph document and `importing`. Importing this loads no torch.
"""

from autosync.models.bundled_graphs import bundled, graph_file, is_bundled, spec_of
from autosync.models.model_specs import BUNDLED, ModelSpec

__all__ = ["BUNDLED", "ModelSpec", "bundled", "graph_file", "is_bundled", "spec_of"]
