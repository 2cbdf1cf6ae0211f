"""The timeline simulator: plays compiled plans against compute and the network."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Op
from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.compute_time import (
    rebuild_seconds_of_buckets,
    slowest_factors,
    update_seconds_of_buckets,
)
from autosync.simulator.cost.message_classes import SERVER_OPERATIONS
from autosync.simulator.cost.network import network_of
from autosync.simulator.cost.network_arrays import Network
from autosync.simulator.extension_prediction import (
    carried_predictions,
    restated_domain,
    restated_strategies,
    slowdown,
    slowdowns,
)
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.compute_clock import TALLIES
from autosync.simulator.timeline.event_loop import play
from autosync.simulator.timeline.message_issue import CHANNELS, ORDERED, ORDERED_VALUES
from autosync.simulator.timeline.sharded_timeline import (
    ShardedIteration,
    ShardedPlayer,
    Span,
)
from autosync.simulator.timeline.timeline_arrays import (
    ComputeArrays,
    CostArrays,
    InFlight,
    MessageArrays,
)
from autosync.torch_engine import FullyShard

RAGGED = tuple(int(op) for op in Op if op.ragged)


class TimelineSimulator:
    """Readiness, order, overlap, startup, shared links, updates: what the equations cannot see."""

    name = "timeline"

    def predict(self, domain: Domain, population: Population) -> NDArray[np.float64]:
        """Seconds an iteration, `(strategies,)`."""
        return self.predict_plans(domain, population, compile_plans_fast(population, domain))

    def predict_plans(
        self, domain: Domain, population: Population, plans: PlanTable
    ) -> NDArray[np.float64]:
        """The same for plans that are compiled already."""
        return simulate(plans, population, domain)


def simulate(plans: PlanTable, population: Population, domain: Domain) -> NDArray[np.float64]:
    """Seconds an iteration in steady state, `(strategies,)`.

    Collectives wait for the slowest rank, and whatever it waits for the others have: its clock is
    never overtaken, so it alone is played. Without extensions the first iteration is the steady
    state already (see `event_loop`). What compute waits for extensions is spread over it evenly.
    The batches before the last of an update are added (`before_seconds`).

    Raises:
        InvalidStrategy: messages of a plan wait for each other in a circle, or an extension
            cannot run it so.
    """
    factors = slowest_factors(domain, population.layouts)[population.layout]
    factors = factors * slowdowns(domain, population, plans)
    inputs = timeline_inputs(plans, domain)
    periods = inputs.play(factors).seconds
    for index in np.flatnonzero(population.engine).tolist():
        engine, factor = _engine(population, index), float(factors[index])
        periods[index] = inputs.play_sharded(plans, index, factor, engine).step_seconds
    for index in np.flatnonzero(restated_strategies(population)).tolist():
        periods[index] = play_one(plans, population, domain, index).step_seconds
    if not np.isfinite(periods).all():
        index = int(np.flatnonzero(~np.isfinite(periods))[0])
        raise InvalidStrategy(
            f"strategy {index}: its messages wait for each other in a circle.",
            thing="plan",
            value=index,
            remedy="Compile the strategy again.",
        )
    for prediction, _ in carried_predictions(population):
        periods = prediction.step_seconds(domain, population, plans, factors, periods)
    result: NDArray[np.float64] = periods + before_seconds(population, domain, plans)
    return result


def before_seconds(
    population: Population, domain: Domain, plans: PlanTable | None = None
) -> NDArray[np.float64]:
    """What the batches before the last of an update take, `(strategies,)`; 0 where it has one.

    Nothing travels meanwhile (`no_sync` of DDP) but under `fully_shard`, where each batch gathers
    values and reduces gradients as the strategy says. Updates that may be late (SSP) are taken to
    travel beside the last batch alone.

    plans: of the population. Without them, those of strategies under `fully_shard` or with
        extensions are compiled; the others' batches are compute alone.
    """
    if domain.accumulate == 1:
        return np.zeros(len(population))
    if plans is not None:
        return (domain.accumulate - 1) * _batch_seconds(plans, population, domain)
    factors = slowest_factors(domain, population.layouts)[population.layout]
    found: NDArray[np.float64] = factors * domain.profile.compute_seconds
    told = np.flatnonzero((population.engine > 0) | (population.extension > 0))
    if len(told):
        part = population.take(told)
        found[told] = _batch_seconds(compile_plans_fast(part, domain), part, domain)
    return (domain.accumulate - 1) * found


def _batch_seconds(plans: PlanTable, population: Population, domain: Domain) -> NDArray[np.float64]:
    """Of one batch before the last, `(strategies,)`."""
    factors = slowest_factors(domain, population.layouts)[population.layout]
    factors = factors * slowdowns(domain, population, plans)
    passes = np.full(len(population), domain.profile.compute_seconds)
    for index in np.flatnonzero(restated_strategies(population)).tolist():
        passes[index] = restated_domain(domain, population, index).profile.compute_seconds
    found: NDArray[np.float64] = factors * passes
    sharded = np.flatnonzero(population.engine).tolist()
    shared = timeline_inputs(plans, domain) if sharded else None
    for index in sharded:
        own = restated_domain(domain, population, index)
        inputs = shared if own is domain else timeline_inputs(plans, own)
        assert inputs is not None
        engine, factor = _engine(population, index), float(factors[index])
        batch = inputs.play_sharded(plans, index, factor, engine, before_last=True)
        found[index] = batch.step_seconds
    return found


@dataclass(frozen=True, slots=True)
class Played:
    """One strategy, message by message, `(messages,)` seconds from the start of backward: an
    iteration with one batch, which is the last of an update that has several.

    issued: handed to its channel. on_wire: its startup is over. left: its last byte is there.
    arrived: on every rank, gradients rebuilt where it brought factors.
    """

    step_seconds: float
    issued: NDArray[np.float64]
    on_wire: NDArray[np.float64]
    left: NDArray[np.float64]
    arrived: NDArray[np.float64]
    spans: tuple[Span, ...] = ()
    forward_start: float = 0.0


def play_one(plans: PlanTable, population: Population, domain: Domain, index: int) -> Played:
    """Strategy `index` with the times of its messages."""
    domain = restated_domain(domain, population, index)
    inputs = timeline_inputs(plans, domain).of_strategy(index)
    begin, stop = int(plans.first[index]), int(plans.first[index + 1])
    factors = slowest_factors(domain, population.layouts)[population.layout[index : index + 1]]
    factors = factors * slowdown(domain, population, plans, index)
    if population.engine[index]:
        engine, factor = _engine(population, index), float(factors[0])
        own = inputs.play_sharded(plans, index, factor, engine)
        times_of = own.issued, own.on_wire, own.arrived, own.arrived
        return Played(own.step_seconds, *times_of, tuple(own.spans), own.forward_start)
    times, own_rows = inputs.play(factors), slice(begin, stop)
    return Played(
        float(times.seconds[0]),
        times.start[own_rows],
        times.flowing[own_rows],
        inputs.in_flight.left[own_rows],
        times.done[own_rows],
    )


def _engine(population: Population, index: int) -> FullyShard:
    engine: FullyShard | None = population.engines[population.engine[index]]
    assert engine is not None
    return engine


def busiest_link_seconds(plans: PlanTable, costs: Network) -> NDArray[np.float64]:
    """`(strategies,)`: how long the plan's bytes occupy the link they occupy longest."""
    classes = costs.classes_of(plans)
    strategy = np.repeat(np.arange(len(plans)), np.diff(plans.first))
    bytes_of = np.zeros((len(plans), len(costs.startup_seconds)))
    np.add.at(bytes_of, (strategy, classes), plans.wire_bytes)
    busiest: NDArray[np.float64] = (bytes_of @ costs.load).max(axis=1)
    if not costs.owner_seconds_per_byte.any():
        return busiest
    parts = [slice(int(first), int(stop)) for first, stop in pairwise(plans.first)]
    return np.array([costs.busiest(plans, rows)[1] for rows in parts])


@dataclass(frozen=True, slots=True)
class TimelineTimes:
    """seconds f64[n]: an iteration, extensions left out; infinite where it cannot finish. start,
    flowing, done f64[M]: when each message is issued, on the wire and received, seconds from the
    start of backward."""

    seconds: NDArray[np.float64]
    start: NDArray[np.float64]
    flowing: NDArray[np.float64]
    done: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimelineInputs:
    """What the kernel plays: plans, network and profile, and room for the messages in flight."""

    network: Network
    messages: MessageArrays
    costs: CostArrays
    compute: ComputeArrays
    in_flight: InFlight

    def of_strategy(self, index: int) -> "TimelineInputs":
        """Of that strategy alone; its messages keep their rows."""
        first = self.messages.first[index : index + 2]
        return replace(self, messages=self.messages._replace(first=first))

    def play(
        self,
        factors: NDArray[np.float64],
        chosen: NDArray[np.int64] | None = None,
        seconds: NDArray[np.float64] | None = None,
    ) -> TimelineTimes:
        """Play the strategies `chosen`, by default all; the others keep their `seconds`, and have
        no times. factors f64[n]: of the slowest rank's compute."""
        start, flowing, done = np.empty((3, len(self.messages.operation)))
        chosen = np.arange(len(factors)) if chosen is None else chosen
        seconds = np.empty(len(factors)) if seconds is None else seconds
        parts = self.messages, self.costs, self.compute, self.in_flight
        play(*parts, chosen, factors, start, flowing, done, seconds)
        return TimelineTimes(seconds, start, flowing, done)

    def play_sharded(
        self,
        plans: PlanTable,
        index: int,
        factor: float,
        engine: FullyShard,
        before_last: bool = False,
    ) -> ShardedIteration:
        """Play strategy `index` of the plans under `fully_shard`, with one batch. factor: of the
        slowest rank. before_last: see `ShardedPlayer.play`."""
        player = ShardedPlayer(plans, index, self.network, self.costs, self.compute, factor)
        return player.play(engine, before_last)


def timeline_inputs(plans: PlanTable, domain: Domain) -> TimelineInputs:
    network = network_of(domain.cluster, plans.teams)
    costs = _kernel_costs(domain, network)
    queue, queues = _queues(plans, network, costs.streamed)
    return TimelineInputs(
        network,
        _kernel_messages(plans, network, queue, _channels(plans, domain)),
        costs,
        _kernel_compute(domain, plans, network),
        _in_flight_arrays(domain, network, plans, queues),
    )


def _kernel_messages(
    plans: PlanTable, costs: Network, queue: NDArray[np.int64], channel: NDArray[np.uint8]
) -> MessageArrays:
    own = {"message_class": costs.classes_of(plans), "queue": queue, "channel": channel}
    plain = {name: getattr(plans, name) for name in MessageArrays._fields if name not in own}
    columns: dict[str, Any] = own | plain
    return MessageArrays(**columns)


def _channels(plans: PlanTable, domain: Domain) -> NDArray[np.uint8]:
    """Of each message, `(messages,)`. In one order are those of fixed size, but for chains with a
    dedicated server, which the runtime does not run."""
    if not backend_of(domain.cluster).one_order:
        return plans.channel
    by_bucket = np.zeros(int(plans.bucket.max(initial=-1)) + 1, dtype=np.bool_)
    by_bucket[plans.bucket[plans.root >= domain.world_size]] = True
    apart = np.isin(plans.operation, RAGGED) | by_bucket[plans.bucket]
    ordered = np.where(plans.carries_values, ORDERED_VALUES, ORDERED)
    return np.where(apart, plans.channel, ordered).astype(np.uint8)


def _queues(
    plans: PlanTable, costs: Network, streamed: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], int]:
    """Of each message, `(messages,)`, and how many there are: one a class, and one a class and root
    where alike roots share a class of streamed messages. streamed: `(classes,)`."""
    classes = costs.classes_of(plans).astype(np.int64)
    alike, kind = np.unique(costs.root_kind, return_inverse=True)
    split = streamed & (costs.server >= 0)
    if len(alike) == len(costs.root_kind) or not split.any():
        return classes, len(streamed)
    order = np.argsort(kind, kind="stable")
    ordinal = np.empty(len(kind), dtype=np.int64)  # of a root among those alike
    ordinal[order] = np.arange(len(kind)) - np.searchsorted(kind[order], kind[order])
    most = int(np.bincount(kind)[kind[costs.server[split] + 1]].max())
    first = len(streamed) + most * (np.cumsum(split) - 1)
    queue = np.where(split[classes], first[classes] + ordinal[plans.root + 1], classes)
    return queue, len(streamed) + most * int(split.sum())


def _kernel_costs(domain: Domain, costs: Network) -> CostArrays:
    backend = backend_of(domain.cluster)
    of_server = np.isin(costs.operations, SERVER_OPERATIONS)
    beside = of_server & (costs.server >= domain.world_size)  # a host that is in no collective
    streamed = np.isin(costs.operations, backend.streams) | beside
    flows = costs.flows if backend.one_connection_a_pair else costs.utilization
    engine = costs.engine_seconds
    return CostArrays(
        startup=costs.startup_seconds,
        copy=costs.copy_seconds_per_byte,
        link=costs.link_seconds,
        per_byte=costs.seconds_per_byte,
        utilization=costs.utilization,
        flows=flows,
        per_flow=np.divide(costs.utilization, flows, out=np.zeros_like(flows), where=flows > 0),
        ports=costs.ports,
        transfer_slowdown=costs.transfer_slowdown,
        in_flight=np.full(len(streamed), costs.in_flight, dtype=np.int64),
        streamed=streamed,
        stepwise=np.isin(costs.operations, backend.stepwise),
        host=costs.host_seconds + (engine if backend.starts_on_host else 0.0),
        host_byte=costs.host_seconds_per_byte,
        ahead=0.0 if backend.starts_on_host else engine,
        in_order=backend.starts_on_host,
        one_order=backend.one_order,
        felt_early=backend.felt_early,
    )


def _kernel_compute(domain: Domain, plans: PlanTable, costs: Network) -> ComputeArrays:
    timing = domain.timing
    return ComputeArrays(
        forward_start=timing.forward_start,
        forward=timing.forward_seconds,
        backward=timing.backward_seconds,
        ready=timing.ready_seconds,
        update=update_seconds_of_buckets(plans, domain),
        rebuild=rebuild_seconds_of_buckets(plans, domain),
        world=domain.world_size,
        slowdown=costs.compute_slowdown,
    )


def _in_flight_arrays(domain: Domain, costs: Network, plans: PlanTable, queues: int) -> InFlight:
    slots = CHANNELS * (costs.in_flight + 1) + queues
    operations = len(domain.graph.operations)
    return InFlight(
        message=np.zeros(slots, dtype=np.int64),
        message_class=np.zeros(slots, dtype=np.int64),
        channel=np.zeros(slots, dtype=np.int64),
        phase=np.zeros(slots, dtype=np.int64),
        time=np.zeros(slots),
        slow=np.zeros(slots),
        moving=np.zeros(slots),
        turn=np.zeros(slots),
        weight=np.zeros(slots),
        earliest=np.zeros(slots),
        issue_number=np.zeros(slots, dtype=np.int64),
        used=np.zeros(costs.utilization.shape[1]),
        flows=np.zeros(costs.utilization.shape[1]),
        crowded=np.zeros(costs.utilization.shape[1], dtype=np.int64),
        cursor=np.zeros(CHANNELS, dtype=np.int64),
        oldest=np.zeros(CHANNELS, dtype=np.int64),
        collectives=np.zeros(CHANNELS, dtype=np.int64),
        handed=np.zeros(CHANNELS, dtype=np.bool_),
        ahead=np.zeros(CHANNELS),
        landing=np.zeros(CHANNELS),
        left=np.zeros(plans.messages),
        processor=np.zeros(1),
        clock=np.zeros(domain.cluster.servers + 1),
        busy=np.zeros(queues, dtype=np.bool_),
        head=np.full(queues, -1, dtype=np.int64),
        tail=np.full(queues, -1, dtype=np.int64),
        follower=np.empty(plans.messages, dtype=np.int64),
        gate_time=np.zeros(operations),
        gate_update=np.zeros(operations),
        pace=np.zeros(4),
        tally=np.zeros(TALLIES, dtype=np.int64),
        wired=np.empty((int(np.diff(plans.first).max(initial=0)), 2)),
    )
