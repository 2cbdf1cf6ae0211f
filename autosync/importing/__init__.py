"""From a PyTorch module to its dataflow graph, without allocating a weight.

Imports the graph document and torch; nothing of plans, the runtime or trials.
"""

from autosync.importing.importer import import_module
from autosync.importing.model_target import ModelTarget, load_target
from autosync.importing.several_examples import Examples

__all__ = ["Examples", "ModelTarget", "import_module", "load_target"]
