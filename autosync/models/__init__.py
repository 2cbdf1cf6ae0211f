"""Well-known models in plain torch, and their imported graphs.

Imports the graph document and `importing`. Importing this loads no torch.
"""

from autosync.models.bundled_models import (
    BUNDLED,
    ModelSpec,
    bundled,
    graph_file,
    is_bundled,
    spec_of,
)

__all__ = ["BUNDLED", "ModelSpec", "bundled", "graph_file", "is_bundled", "spec_of"]
