"""The plan compiler as machine code: the same functions, compiled by numba, for populations."""

from autosync.domain import Domain
from autosync.plan import PlanTable, compile_plans
from autosync.plan.compiler_loop import compile_loop
from autosync.population import Population
from autosync.simulator.numba_cache import Kernel

_compiled_loop = Kernel(compile_loop, allocates=False)


def compile_plans_fast(population: Population, domain: Domain) -> PlanTable:
    """What `autosync.plan.compile_plans` returns, about a hundred times sooner.

    Releases the interpreter lock. The first call on a machine compiles (10 s) and keeps the
    result beside the sources; later processes load it (0.3 s).
    """
    return compile_plans(population, domain, _compiled_loop)
