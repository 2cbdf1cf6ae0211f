"""Strategies compiled to the ordered messages of one iteration.

Imports documents and the population; loads neither torch nor numba.
"""

from autosync.plan.compiler import compile_plans
from autosync.plan.plan_document import Message, Piece, Plan, ShardSpec, plan_of
from autosync.plan.plan_table import PlanTable

__all__ = ["Message", "Piece", "Plan", "PlanTable", "ShardSpec", "compile_plans", "plan_of"]
