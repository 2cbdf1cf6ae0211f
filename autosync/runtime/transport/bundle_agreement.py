"""The first exchange of `distribute`: what every rank was given, so that all go the same way.

A rank that went on by itself, to torch's DDP or to another plan, would leave the others waiting in
a collective that it never joins.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

import torch
import torch.distributed as dist

from autosync.bundle import Bundle
from autosync.environment import host_name
from autosync.errors import AutosyncError, InvalidInput
from autosync.runtime.device.streams import on_device
from autosync.runtime.transport.rank_agreement import check_same_tensors, ranks_meet


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank brings to `distribute`.

    error: why it cannot begin, in words. change: what of its bundle does not fit its model. given:
    by name, what has to be the same on every rank. tensors: `forms_of` its model, the same, too.
    """

    host: str
    error: str = ""
    change: str = ""
    given: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)


def exchange_reports(
    mine: RankReport, group: dist.ProcessGroup, device: torch.device
) -> tuple[RankReport, ...]:
    """Every rank's report, by rank. A collective.

    Raises:
        InvalidInput: on every rank, when one of them cannot begin, was given something else, or has
            another model.
        SynchronizationFailed: a peer died or did not come.
    """
    reports = [mine] * group.size()
    with ranks_meet(), on_device(device):
        dist.all_gather_object(reports, mine, group=group)
    for rank, report in enumerate(reports):
        if report.error and not mine.error:
            raise InvalidInput(
                f"rank {rank} cannot begin: {report.error}",
                thing="autosync.distribute",
                value=rank,
                remedy="No rank begins without it.",
            )
    if not mine.error:
        _check_alike(reports)
        check_same_tensors([report.tensors for report in reports])
    return tuple(reports)


@contextmanager
def refused_everywhere(group: dist.ProcessGroup, device: torch.device) -> Iterator[None]:
    """What this rank refuses before the exchange is an error on the others too, which would wait
    for it there."""
    try:
        yield
    except AutosyncError as error:
        exchange_reports(RankReport(host_name(), error=str(error)), group, device)
        raise


@contextmanager
def agreed_everywhere(group: dist.ProcessGroup, device: torch.device) -> Iterator[None]:
    """As `refused_everywhere`, behind the exchange: the ranks meet once more, so that none goes on
    without one that refuses."""
    with refused_everywhere(group, device):
        yield
    exchange_reports(RankReport(host_name()), group, device)


def given_to(shipped: Bundle, arguments: Mapping[str, object]) -> dict[str, str]:
    """What has to be the same on every rank: of the bundle, and of `distribute`'s arguments."""
    fit = repr((shipped.variables, shipped.hosts))
    return {
        "number of ranks": str(len(shipped.hosts)),
        "engine": shipped.plan.engine,
        "plan": shipped.plan.id,
        "variables and hosts": sha256(fit.encode()).hexdigest()[:16],
        **{name: repr(value) for name, value in arguments.items()},
    }


def _check_alike(reports: list[RankReport]) -> None:
    first = reports[0].given
    for name, value in first.items():
        others = {rank: r.given.get(name) for rank, r in enumerate(reports)}
        others = {rank: other for rank, other in others.items() if other != value}
        if others:
            rank, other = next(iter(others.items()))
            raise InvalidInput(
                f"ranks were given different bundles or arguments: {name} is {value} on rank 0, "
                f"{other} on rank {rank}, and unlike rank 0's on {len(others)} of {len(reports)} "
                "ranks.",
                thing=name,
                value={0: value, **others},
                remedy="Give every rank the same bundle file and the same arguments.",
            )
