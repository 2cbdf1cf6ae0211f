"""Where an iteration's time goes (compute, transfers, startups), and how much memory it takes."""

from dataclasses import dataclass

import numpy as np

from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population, decode, encode
from autosync.simulator.binding import assumed_iteration, binding_of
from autosync.simulator.extension_prediction import prediction_of, slowdown
from autosync.simulator.limit import Limit, iteration_limit
from autosync.simulator.memory.peak_memory import device_memory_bytes, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import Strategy
from autosync.units import percent_in_words


@dataclass(frozen=True, slots=True)
class Explanation:
    """step_seconds = compute + update + transfer + startup + slowed, the last four as far as they
    show.

    compute_seconds: with what it waits for extensions.
    transfer_seconds: what the iteration would lose were links infinitely fast, startups free.
    startup_seconds: what it would lose were only startups free.
    slowed_seconds: what it gains where compute takes longer while messages are on the wire; the
        three before are without that.
    messages, wire_bytes: of all batches of an update.
    busiest: the link that is held longest, busiest_seconds an iteration.
    binding: what shortens the iteration most where it is faster: compute, startups or a link.
    limit_percent: the domain's limit over step_seconds; 100 cannot be beaten.
    peak_memory_bytes, device_memory_bytes: of each rank; the former predicted, the latter infinite
        where nothing states it.
    extensions: by the key of one that the strategy carries, sentences on what it changes in what
        travels.
    """

    step_seconds: float
    compute_seconds: float
    update_seconds: float
    transfer_seconds: float
    startup_seconds: float
    slowed_seconds: float
    messages: int
    wire_bytes: int
    busiest: str
    busiest_seconds: float
    binding: str
    limit_seconds: float
    peak_memory_bytes: tuple[float, ...]
    device_memory_bytes: tuple[float, ...]
    extensions: tuple[tuple[str, str], ...] = ()

    @property
    def ranks_out_of_memory(self) -> tuple[int, ...]:
        """Ranks whose devices have less memory than the peak."""
        both = zip(self.peak_memory_bytes, self.device_memory_bytes, strict=True)
        return tuple(rank for rank, (peak, memory) in enumerate(both) if peak > memory)

    @property
    def limit_percent(self) -> float:
        return 100.0 * self.limit_seconds / self.step_seconds

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {seconds * 1e3:.1f}"
            for name, seconds in (
                ("compute", self.compute_seconds),
                ("update", self.update_seconds),
                ("exposed transfer", self.transfer_seconds),
                ("exposed startup", self.startup_seconds),
                ("compute slowed by messages", self.slowed_seconds),
            )
            if seconds > 0
        )
        return (
            f"{self.step_seconds * 1e3:.1f} ms = {parts} ms, bound by {self.binding}; "
            f"{self.messages} messages; "
            f"{self.busiest} busy {self.busiest_seconds / self.step_seconds:.0%}; "
            f"{percent_in_words(self.limit_percent)} of the limit"
        )


def explain(domain: Domain, strategy: Strategy, bound: Limit | None = None) -> Explanation:
    """The timeline's account of a strategy. `bound`: the domain's limit, if known already."""
    population = encode([strategy], domain)
    plans = compile_plans_fast(population, domain)
    return explain_plan(plans, population, domain, 0, bound or iteration_limit(domain))


def explain_plan(
    plans: PlanTable, population: Population, domain: Domain, index: int, bound: Limit
) -> Explanation:
    """The same for strategy `index` of compiled plans."""
    iteration = assumed_iteration(plans, population, domain, index)
    costs, compute = iteration.inputs.costs, iteration.inputs.compute
    nothing = np.zeros_like(costs.startup)
    swift = costs._replace(
        startup=nothing, copy=nothing, host=nothing, host_byte=nothing, ahead=0.0
    )
    free = swift._replace(per_byte=nothing)
    even = compute._replace(slowdown=0.0)
    no_work = np.zeros_like(compute.update)

    real, not_slowed, no_startup, no_network, no_update = (
        iteration.seconds(assumed, work)
        for assumed, work in (
            (costs, compute),
            (costs, even),
            (swift, even),
            (free, even),
            (free, even._replace(update=no_work, rebuild=no_work)),
        )
    )
    times = iteration.times
    busiest, busiest_seconds = iteration.busiest
    return Explanation(
        step_seconds=real,
        compute_seconds=no_update,
        update_seconds=no_network - no_update,
        transfer_seconds=no_startup - no_network,
        startup_seconds=not_slowed - no_startup,
        slowed_seconds=real - not_slowed,
        messages=int(times.sum()),
        wire_bytes=int(times @ plans.wire_bytes[iteration.rows]),
        busiest=busiest,
        busiest_seconds=busiest_seconds,
        binding=binding_of(iteration).resource,
        limit_seconds=bound.seconds,
        peak_memory_bytes=tuple(memory_of(domain).peak_bytes(plans, population)[index].tolist()),
        device_memory_bytes=tuple(device_memory_bytes(domain).tolist()),
        extensions=_accounts(domain, decode(population, index, domain)),
    )


def predicted_slowdown(domain: Domain, strategy: Strategy) -> float:
    """How many times longer forward and backward passes take for what it carries of extensions."""
    if not strategy.extensions:
        return 1.0
    population = encode([strategy], domain)
    return slowdown(domain, population, compile_plans_fast(population, domain), 0)


def _accounts(domain: Domain, strategy: Strategy) -> tuple[tuple[str, str], ...]:
    return tuple(
        (entry.key, sentence)
        for entry in strategy.extensions
        for sentence in prediction_of(entry.key).account(domain, strategy)
    )
