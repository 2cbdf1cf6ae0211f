from tests.autosync.trials.conftest import testbed_possible

__all__ = ["testbed_possible"]
