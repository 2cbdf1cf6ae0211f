"""From a PyTorch module to its dataflow graph, without allocating a weight."""

from autosync.importing.importer import import_module
from autosync.importing.target import Target, load_target

__all__ = ["Target", "import_module", "load_target"]
