"""The only compiler: strategies to messages."""

from autosync.domain import Domain
from autosync.plan.table import PlanTable
from autosync.population import Population


def compile_plans(population: Population, domain: Domain) -> PlanTable:
    raise NotImplementedError
