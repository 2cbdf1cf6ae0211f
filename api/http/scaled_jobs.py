"""What a job reaches on other numbers of nodes."""

from dataclasses import replace

from sqlalchemy.orm import Session

from autosync.api.http.given_predictions import answer_all, strategies_to_predict
from autosync.api.http.named_documents import domain_named
from autosync.api.prediction_spec import ScaleSpec
from autosync.api.views.prediction_ranges import ESTIMATED, calibrate, compute_is_known
from autosync.api.views.schemas import ScaledJob, ScaledPoint
from autosync.cluster.cluster_sizes import cluster_of_nodes
from autosync.domain import Domain
from autosync.simulator.cost.applied_constants import ESTIMATED_COMPUTE_SHARE
from autosync.simulator.memory.peak_memory import device_memory_bytes, memory_of
from autosync.simulator.scaling import ScalePoint, knee_of
from autosync.simulator.simulator_contract import Simulator
from autosync.units import counted


def scaled_job(session: Session, body: ScaleSpec) -> ScaledJob:
    """
    Raises:
        NotFound, InvalidInput, InvalidStrategy, NotSupported: as `given_predictions`, and as
            `cluster_of_nodes` of each number of nodes.
    """
    from autosync.api.engine.simulator_store import simulator_of

    own = domain_named(session, body, body.cluster, body.profile)
    predictor = simulator_of(session, body.simulator)
    found = [_point(body, own, count, predictor) for count in sorted(set(body.nodes))]
    points = [point for point, _ in found]
    return ScaledJob(
        points=[ScaledPoint.model_validate(point) for point in points],
        knee_nodes=knee_of(points),
        warnings=list(dict.fromkeys(each for _, warnings in found for each in warnings)),
    )


def _point(
    body: ScaleSpec, own: Domain, nodes: int, predictor: Simulator
) -> tuple[ScalePoint, list[str]]:
    """With what must be known of the prediction, a sentence each."""
    workers = [node for node in own.cluster.nodes if node.ranks]
    update, batches = own.profile.update_seconds, own.accumulate
    if nodes == 1 and workers[0].ranks == 1:  # no cluster: nothing is synchronized
        device = workers[0].devices[0]
        factor = own.profile.factor_on(device)
        computing = factor * own.profile.compute_seconds * batches + update
        price = workers[0].usd_per_hour or None
        rate = batches * own.batch_size / computing
        measured = (own.profile.source, own.profile.device) == ("measured", device.type)
        known = measured or compute_is_known(own, body)
        width = 1.0 if known else 1.0 + ESTIMATED_COMPUTE_SHARE
        low, high = computing / width, computing * width
        point = ScalePoint(1, 1, computing, low, high, rate, 1.0, "compute", price)
        warnings = [] if known else [ESTIMATED]
        if (needed := memory_of(own).alone_bytes()) > device_memory_bytes(own)[0]:
            warnings.append(_does_not_fit("the model", 1, needed))
        return point, warnings
    alone = replace(own, cluster=cluster_of_nodes(own.cluster, nodes))
    computing = alone.compute_seconds * batches + update
    calibration = calibrate(alone, "auto", compute_is_known(alone, body))
    asked = strategies_to_predict(calibration.domain, [body.strategy])
    (found,) = answer_all(calibration, asked, None, predictor)
    point = ScalePoint(
        nodes=nodes,
        ranks=alone.world_size,
        step_seconds=found.predicted_seconds,
        low_seconds=found.low_seconds,
        high_seconds=found.high_seconds,
        samples_per_second=found.samples_per_second,
        efficiency=computing / found.predicted_seconds,
        binding=found.binding,
        usd_per_hour=alone.cluster.usd_per_hour,
    )
    if found.fits:
        return point, found.warnings
    short = _does_not_fit(found.strategy, nodes, found.predicted_peak_bytes)
    return point, [*found.warnings, short]


def _does_not_fit(what: str, nodes: int, peak_bytes: float) -> str:
    return (
        f"{what} does not fit on {counted(nodes, 'node')}: a rank needs up to "
        f"{peak_bytes / 1e9:.2f} GB, and not all devices have enough (predicted)"
    )
