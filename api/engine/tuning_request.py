"""From a tuning's row to the tuning loop and back."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.db.document_store import keep_domain, load_domain
from autosync.api.db.tables import OutcomeRow, TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.engine.registry import check_launcher, launcher_named
from autosync.api.engine.simulator_store import hold_simulator, simulator_of
from autosync.api.views.exports import measured_on
from autosync.bundle import Bundle, Evidence, make_bundle
from autosync.documents import content_hash, from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.search.loop.outcome import Outcome
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_loop import tune
from autosync.search.space import Space
from autosync.trials.byte_scale import automatic_scales
from autosync.trials.contract import ComputeDevice, ComputeKind, Launcher, Workload
from autosync.trials.launcher_names import REAL_CLUSTERS
from autosync.verification import check_runnable


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """All that a tuning is asked to do. The last four: see `Workload`."""

    domain: Domain
    settings: Settings = field(default_factory=Settings)
    space: Space = field(default_factory=Space)
    simulator: str = "timeline"
    launcher: str = "auto"
    byte_scale: float = 1.0
    time_scale: float = 1.0
    compute: ComputeKind = "waited"
    device: ComputeDevice = "cpu"

    @property
    def workload(self) -> Workload:
        """Raises InvalidInput where compute, device, scales and cluster do not go together."""
        return Workload(
            self.domain,
            byte_scale=self.byte_scale,
            time_scale=self.time_scale,
            compute=self.compute,
            device=self.device,
        )


def enqueue(database: Database, job: TuningRequest) -> str:
    """Store the job and put it into the queue; the tuning's id.

    Raises:
        InvalidInput: a pin does not fit the graph, a scale is out of range, or compute and device
            do not go with the rest.
        NotFound: no such simulator.
        NotSupported: the operator has not set up the launcher, or a pin cannot be run.
    """
    check_launcher(job.launcher)
    check_pins(job.space, job.domain)
    check_scales(job.byte_scale, job.time_scale)
    workload = job.workload
    tuning_id = uuid.uuid4().hex
    with database.writing() as session:
        simulator = hold_simulator(session, job.simulator, job.domain)
        job_queue.submit(
            session,
            id=tuning_id,
            domain_id=keep_domain(session, job.domain),
            launcher=job.launcher,
            byte_scale=workload.byte_scale,
            time_scale=workload.time_scale,
            compute=workload.compute,
            compute_device=workload.device,
            simulator=simulator,
            settings=to_json(job.settings),
            space=to_json(job.space),
        )
    return tuning_id


def load_job(session: Session, tuning_id: str) -> TuningRequest:
    row = session.get_one(TuningRow, tuning_id)
    return TuningRequest(
        domain=load_domain(session, row.domain_id),
        settings=from_json(Settings, row.settings),
        space=from_json(Space, row.space),
        simulator=row.simulator,
        launcher=row.launcher,
        byte_scale=row.byte_scale,
        time_scale=row.time_scale,
        compute=cast(ComputeKind, row.compute),
        device=cast(ComputeDevice, row.compute_device),
    )


def run_job(
    job: TuningRequest,
    store: DatabaseStore,
    launcher_of: Callable[[str], Launcher] = launcher_named,
) -> Outcome:
    """Tune; progress goes to the store as it happens."""
    workload = job.workload
    launcher = launcher_of(job.launcher)
    with store.database.reading() as session:
        simulator = simulator_of(session, job.simulator)
    return tune(
        job.domain,
        job.space,
        lambda: launcher.open(workload),
        store,
        simulator,
        job.settings,
        store.report,
        stop=lambda phase: store.cancelled(),
    )


def outcome_row(
    tuning_id: str, job: TuningRequest, outcome: Outcome, ran_on: str = ""
) -> OutcomeRow:
    """The answer as a row, with the bundle that is shipped. Its strategy was proposed, so the
    database has it. ran_on: where trials really ran (`auto` names no place)."""
    return OutcomeRow(
        tuning_id=tuning_id,
        strategy_hash=content_hash(outcome.best.strategy),
        best_seconds=outcome.best_seconds,
        ddp_seconds=outcome.ddp_seconds,
        speedup=outcome.speedup,
        speedup_low=outcome.speedup_low,
        speedup_high=outcome.speedup_high,
        repeats=outcome.repeats,
        keep_ddp=outcome.keep_ddp,
        bundle=to_json(best_bundle(job, outcome, ran_on or job.launcher)),
    )


def best_bundle(job: TuningRequest, outcome: Outcome, ran_on: str) -> Bundle:
    evidence = Evidence(
        predicted_seconds=outcome.best.predicted_seconds,
        step_seconds=outcome.best_seconds,
        ddp_step_seconds=outcome.ddp_seconds,
        measured_on=measured_on(ran_on, job.byte_scale, job.time_scale),
    )
    return make_bundle(outcome.best.strategy, job.domain, evidence)


def usual_scales(
    domain: Domain, launcher: str, compute: ComputeKind = "waited"
) -> tuple[float, float]:
    """The byte scale and time scale that this machine's cores carry; 1 on real clusters, and
    beside kernels, which cannot be scaled."""
    real = launcher in REAL_CLUSTERS or compute == "kernels"
    return (1.0, 1.0) if real else automatic_scales(domain)


def continues(given: Domain, kept: Domain, compute: ComputeKind) -> bool:
    """Whether a tuning that was asked for `given` may have come to `kept`, by measuring what
    messages cost and, where its compute is kernels, what these take."""
    costs = given.cluster.costs and kept.cluster.costs
    profile = given.profile if compute == "kernels" else kept.profile
    cluster = replace(kept.cluster, costs=costs)
    return replace(kept, cluster=cluster, profile=profile).id == given.id


def refuse_unused(compute: ComputeKind, given: Mapping[str, object]) -> None:
    """given: what a profile can be made from, by its name in the request; None where left out.

    Raises:
        InvalidInput: kernels are to compute, whose profile is measured, and one is given.
    """
    for thing, value in given.items():
        if compute == "kernels" and value is not None:
            raise InvalidInput(
                f"{thing} has no effect on kernels: what they take is measured before the search.",
                thing=thing,
                value=getattr(value, "note", value),
                remedy=f"Leave {thing} out, or choose compute waited, which waits as it says.",
            )


def check_pins(space: Space, domain: Domain) -> None:
    """Refuses pins for another graph, and those that no trial could run, before anything is stored.

    Raises:
        InvalidInput: a pin does not fit the graph.
        NotSupported: a pinned owner is a dedicated server host.
    """
    check_runnable(space.pins, domain.world_size)
    shapes = {variable.name: variable.shape for variable in domain.graph.variables}
    for pin in space.pins:
        if pin.variable not in shapes:
            raise InvalidInput(
                f"a pin names variable {pin.variable!r}, which graph {domain.graph.name!r} "
                "does not have.",
                thing="space.pins",
                value=pin.variable,
                remedy="Pin variables of this graph; GET /v1/graphs/{id} lists them.",
            )
        shape, axis = shapes[pin.variable], pin.partition.axis
        length = domain.graph.variables[list(shapes).index(pin.variable)].elements
        if axis != -1:
            length = shape[axis] if 0 <= axis < len(shape) else 0
        if sum(pin.partition.lengths) != length:
            raise InvalidInput(
                f"the pin of {pin.variable!r} cuts axis {axis} into {pin.partition.lengths[:8]}, "
                f"but its shape is {shape}.",
                thing="space.pins",
                value=pin.partition.lengths[:8],
                remedy="The lengths must add up to that dimension (all elements for axis -1).",
            )


def check_scales(byte_scale: float, time_scale: float) -> None:
    for name, value, most in (("byte_scale", byte_scale, 1.0), ("time_scale", time_scale, 1000.0)):
        if not 0 < value <= most:
            raise InvalidInput(
                f"{name} is {value}; it must lie above 0 and not exceed {most:g}.",
                thing=name,
                value=value,
                remedy=f"Leave {name} out, or give 1 to move real sizes at real speed.",
            )
