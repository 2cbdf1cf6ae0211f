"""How long a prediction takes at least, before it begins."""

from collections.abc import Sequence

from autosync.api.engine.service_limits import ServiceLimits, how_to_raise
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.simulator.cost.collective_costs import has_collective_model
from autosync.simulator.simulator_contract import Learner, Simulator

DESIGN_SECONDS = 1.0e-5
"""For building the designs, times the square of the variables: PACE's fusion compares pairs."""
PLAY_SECONDS = 1.5e-7
"""For playing the designs, times variables and the square of the devices: each has its links."""
ALIKE_PLAY_SECONDS = 5e-6
"""The same where alike links and servers stand as one, times variables and devices: owners are
looked for among all devices (161 variables: 2.6 core-seconds on 1,024 GPUs, 28 on 16,384)."""
SAMPLE_SECONDS, SAMPLE_DEVICE_SECONDS = 8e-7, 3e-8
"""For each proposal and variable, by the timeline, and for each of these and device, unless alike
links stand as one."""
LEARNER_FACTOR = 4.0
"""How much longer a simulator that learns takes for a proposal. All were measured on two cores, for
161 to 2,000 variables on 4 to 1,024 devices, and up to 16,384 GPUs. They are the lower end of what
was measured, so that no prediction is refused that would have been answered in time."""


def estimated_seconds(domain: Domain, predictor: Simulator, proposals: int) -> float:
    """Of a ranking, at least. proposals: 0 for designs alone."""
    variables, devices = len(domain.graph.variables), domain.world_size
    if has_collective_model(domain.cluster):
        playing, sampling = ALIKE_PLAY_SECONDS * devices, SAMPLE_SECONDS
    else:
        playing = PLAY_SECONDS * devices**2
        sampling = SAMPLE_SECONDS + SAMPLE_DEVICE_SECONDS * devices
    factor = LEARNER_FACTOR if isinstance(predictor, Learner) else 1.0
    designs = DESIGN_SECONDS * variables**2 + variables * playing
    return designs + factor * proposals * variables * sampling


def check_work(
    domains: Sequence[Domain], predictor: Simulator, proposals: int, limits: ServiceLimits
) -> None:
    """Of one model's rankings on several clusters, one after the other.

    Raises:
        InvalidInput: they take longer than the operator allows.
    """
    most = limits.prediction_seconds
    seconds = sum(estimated_seconds(domain, predictor, proposals) for domain in domains)
    if seconds <= most:
        return
    alone = sum(estimated_seconds(domain, predictor, 0) for domain in domains)
    fitting = int(proposals * (most - alone) / (seconds - alone)) if alone < most else 0
    fewer = "devices or clusters" if len(domains) > 1 else "devices"
    less = (
        f"Ask for {fitting} proposals"
        if fitting
        else f"Ask for fewer {fewer} or a model of fewer variables"
    )
    variables = len(domains[0].graph.variables)
    raise InvalidInput(
        f"all designs and {proposals} proposals for {variables} variables on "
        f"{', '.join(str(domain.world_size) for domain in domains)} devices take {seconds:.0f} s "
        f"or more; this service allows {most} s.",
        thing="proposals",
        value=f"{seconds:.0f} s",
        remedy=f"{less}, or start a tuning (POST /v1/tunings), which has the time. "
        f"{how_to_raise('prediction_seconds')}",
    )
