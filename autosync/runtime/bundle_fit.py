"""Whether a bundle fits the job that it is given to: its variables, its ranks and their hosts."""

import logging

from torch import nn

from autosync.bundle import Bundle
from autosync.runtime.transport.agreement import RankReport
from autosync.runtime.variable_names import matched_names, similar_names
from autosync.torch_dtypes import TORCH_DTYPES

log = logging.getLogger("autosync")


def changes_anywhere(shipped: Bundle, reports: tuple[RankReport, ...]) -> str:
    """What no longer matches on any rank; the same words on every rank."""
    if len(shipped.hosts) != len(reports):
        return f"it is for {len(shipped.hosts)} ranks, this job has {len(reports)}"
    for rank, report in enumerate(reports):
        if report.change:
            return f"on rank {rank}, {report.change}"
    return host_changes(shipped.hosts, tuple(report.host for report in reports))


def variable_changes(shipped: Bundle, model: nn.Module) -> str:
    """The first difference between the bundle's variables and the model's, in words."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    planned = [variable.name for variable in shipped.variables]
    model_name = matched_names(planned, found)
    left = dict(found)
    for spec in shipped.variables:
        parameter = left.pop(model_name.get(spec.name, spec.name), None)
        if parameter is None:
            alike = similar_names(spec.name, planned, found)
            return f"variable {spec.name!r} is missing or frozen{alike}"
        if tuple(parameter.shape) != spec.shape:
            return f"variable {spec.name!r} has shape {tuple(parameter.shape)}, not {spec.shape}"
        if parameter.dtype != TORCH_DTYPES[spec.dtype]:
            return f"variable {spec.name!r} is {parameter.dtype}, not {spec.dtype}"
    return f"variable {next(iter(left))!r} is not in the bundle" if left else ""


def model_names(shipped: Bundle, model: nn.Module) -> tuple[str, ...]:
    """The plan's variables, in its order, as the model that it fits calls them."""
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    model_name = matched_names((variable.name for variable in shipped.variables), trained)
    for planned, own in model_name.items():
        if planned != own:
            log.info("the bundle's variables have other names: %r is %r here.", planned, own)
            break
    return tuple(model_name[variable.name] for variable in shipped.variables)


def host_changes(planned: tuple[str, ...], actual: tuple[str, ...]) -> str:
    """Whether ranks share hosts as planned. Addresses may differ: a bundle knows addresses, a
    rank its host name, so only the grouping is compared."""
    for rank in range(len(planned)):
        for other in range(rank):
            if (planned[rank] == planned[other]) != (actual[rank] == actual[other]):
                together = "share" if planned[rank] == planned[other] else "do not share"
                return f"ranks {other} and {rank} {together} a host in the bundle, but not here"
    return ""
