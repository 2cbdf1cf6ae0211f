"""All that a tuning is asked to do, and the scales at which this machine can do it."""

from dataclasses import dataclass, field, replace

from autosync.domain import Domain
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from autosync.trials.contract import Workload
from autosync.trials.request_names import REAL_CLUSTERS, ComputeDevice, ComputeKind
from autosync.trials.scales import automatic_scales


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """What to tune, how widely to search, and how trials run. Scales, compute and device: see
    `Workload`.

    earlier: what another tuning of the model measured, where the search begins from it.
    simulator_version: which version of the trained simulator `simulator` stands for; None where it
        names no trained one, or none was asked for yet.
    """

    domain: Domain
    settings: Settings = field(default_factory=Settings)
    space: Space = field(default_factory=Space)
    simulator: str = "timeline"
    simulator_version: int | None = None
    launcher: str = "auto"
    byte_scale: float = 1.0
    time_scale: float = 1.0
    compute: ComputeKind = "waited"
    device: ComputeDevice = "cpu"
    earlier: EarlierTrials | None = None

    @property
    def searched(self) -> Space:
        """The space, without what trials could not run: kernels take what they take, so that what
        they would wait for swapped tensors is not measured."""
        return replace(self.space, swapping=False) if self.compute == "kernels" else self.space

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


def at_scales(
    request: TuningRequest, byte_scale: float | None, time_scale: float | None
) -> TuningRequest:
    """The request at these scales; None stands for what this machine's cores carry."""
    usual_bytes, usual_time = usual_scales(request.domain, request.launcher, request.compute)
    return replace(
        request,
        byte_scale=usual_bytes if byte_scale is None else byte_scale,
        time_scale=usual_time if time_scale is None else time_scale,
    )


def usual_scales(
    domain: Domain, launcher: str, compute: ComputeKind = "waited"
) -> tuple[float, float]:
    """The byte scale and time scale that this machine's cores carry; 1 on real clusters, and
    beside kernels, which cannot be scaled."""
    real = launcher in REAL_CLUSTERS or compute == "kernels"
    return (1.0, 1.0) if real else automatic_scales(domain)


def same_tuning(asked: Domain, stored: Domain, compute: ComputeKind) -> bool:
    """Whether a tuning that was asked for `asked` may have come to `stored`, by measuring what
    messages cost and, where its compute is kernels, what these take."""
    given, cluster = asked.cluster, stored.cluster
    if cluster.costs and not given.costs:  # a probe told these three
        sends = given.link_seconds_per_send
        cluster = replace(cluster, costs=(), curves=given.curves, link_seconds_per_send=sends)
    profile = asked.profile if compute == "kernels" else stored.profile
    return replace(stored, cluster=cluster, profile=profile).id == asked.id
