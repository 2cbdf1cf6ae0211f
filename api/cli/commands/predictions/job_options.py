"""What `autosync predict`, `rank` and `scale` take alike: a job, its compute, and who answers."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from autosync.api.cli.added_options import set_parameters
from autosync.api.cli.options import (
    DEFAULT_DATABASE,
    Accumulate,
    Batch,
    ClusterName,
    DatabaseUrl,
    DeviceType,
    Efficiency,
    Json,
    Model,
    Optimizer,
    PrecisionName,
    ProfileFile,
    Recompute,
    ServiceUrl,
    StepSeconds,
)

if TYPE_CHECKING:
    from autosync.api.client.rest_client import Client
    from autosync.domain import Domain

GARBAGE_OBJECTS = 100_000
"""Made before Python looks for circles among them: by default 700, ever again in the imports and
strategies of a prediction, which are all needed to its end."""


@dataclass(frozen=True, slots=True)
class GivenJob:
    """The domain, who predicts, and arguments of every prediction of the domain."""

    domain: "Domain"
    client: "Client"
    arguments: dict[str, Any]
    json: bool


def predicts_job(command: Callable[..., None]) -> Callable[..., Any]:
    """Adds the parameters of `_given_job` to a command, which is given the job as `job`."""
    added = [
        each.replace(kind=Parameter.KEYWORD_ONLY)
        for each in signature(_given_job).parameters.values()
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        of_job = {each.name: given.pop(each.name) for each in added}
        with _given_job(**of_job) as job:
            command(job=job, **given)

    set_parameters(run, command, added, without="job", at_the_end=True)
    return run


@contextmanager
def _given_job(
    model: Model,
    cluster: ClusterName,
    batch: Batch = None,
    optimizer: Optimizer = None,
    step_seconds: StepSeconds = None,
    precision: PrecisionName = "recorded",
    recompute: Recompute = False,
    accumulate: Accumulate = 1,
    device: DeviceType = None,
    efficiency: Efficiency = None,
    profile: ProfileFile = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    url: ServiceUrl = None,
    json: Json = False,
) -> Iterator[GivenJob]:
    """The domain, described on stderr, and the open connection to who predicts."""
    from autosync.api.cli.connection import connected
    from autosync.api.cli.domain_arguments import ProfileChoice, describe_domain, load_domain
    from autosync.compute_settings import ComputeSettings

    gc.set_threshold(GARBAGE_OBJECTS)
    settings = ComputeSettings(precision, recompute, step_seconds, efficiency)
    choice = ProfileChoice(profile, device, settings)
    domain = replace(load_domain(model, cluster, batch, choice, optimizer), accumulate=accumulate)
    describe_domain(domain)
    arguments = {
        "profile": domain.profile,
        "optimizer": domain.optimizer,
        "compute_is_known": step_seconds is not None,
        "accumulate": accumulate,
    }
    with connected(db, url, temporary=True) as at:
        yield GivenJob(domain, at.client, arguments, json)
