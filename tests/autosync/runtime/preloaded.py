"""Imported once by the process that ranks are forked from: torch, the tests' helpers, and the plan
compiler's machine code, whose loading costs every process a second."""

from tests.autosync.runtime import cases, drawn, rows

__all__ = ["drawn", "rows"]

cases.plan(cases.Case(), cases.make_model("mlp"), 2)
