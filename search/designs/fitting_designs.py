"""Whether any designed strategy fits the devices' memory."""

from autosync.domain import Domain
from autosync.errors import InvalidInput, InvalidStrategy
from autosync.extensions.offload.swapped_designs import swapped_where_needed
from autosync.population import encode
from autosync.search.designs.design_table import hand_designed
from autosync.search.designs.torch_engines import torch_designs
from autosync.search.space import Space
from autosync.simulator.memory.memory_check import check_memory, fitting_rows
from autosync.simulator.memory.peak_memory import device_memory_bytes, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast


def check_any_fits(domain: Domain, space: Space) -> None:
    """
    Raises:
        InvalidInput: nothing fits; says which strategy needs least, how much that is, and what
            would make it fit.
    """
    devices = device_memory_bytes(domain)
    memory = memory_of(domain)
    if memory.most_bytes(1.0) <= devices.min():
        return
    named = [*hand_designed(domain, space), *torch_designs(domain, space)]
    named += swapped_where_needed(domain, named, space)
    population = encode([strategy for _, strategy in named], domain)
    if len(fitting_rows(domain, population)):
        return
    plans = compile_plans_fast(population, domain)
    excess = (memory.peak_bytes(plans, population) / devices).max(axis=1)
    name, strategy = named[int(excess.argmin())]
    try:
        check_memory(strategy, domain)
    except InvalidStrategy as error:
        raise InvalidInput(
            f"none of {len(named)} designed strategies fits the devices of cluster "
            f"{domain.cluster.name!r} (predicted). "
            f"{name} needs least: {error.message}",
            thing="memory",
            value=error.value,
            remedy=error.remedy,
        ) from None
