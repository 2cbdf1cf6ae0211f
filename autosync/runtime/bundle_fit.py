"""Checks whether a bundle fits a job: its variables, its ranks and their hosts.

Variables' names may begin differently: a graph is often imported from a wrapper that computes the
loss (`model.layer.weight`), while the script distributes the model inside (`layer.weight`), or the
other way around; torch.compile and checkpoint wrappers put a word of their own into a name.
"""

import logging
from collections.abc import Iterable

from torch import nn

from autosync.bundle import Bundle
from autosync.errors import NotSupported
from autosync.runtime.transport.agreement import RankReport
from autosync.torch_dtypes import TORCH_DTYPES
from autosync.torch_engine import WRAPPERS
from autosync.verification.shard_checks import SHARE_TOLERANCE

log = logging.getLogger("autosync")


def changes_anywhere(shipped: Bundle, reports: tuple[RankReport, ...]) -> str:
    """The mismatches of all ranks; the same words on every rank."""
    if len(shipped.hosts) != len(reports):
        return f"it is for {len(shipped.hosts)} ranks, this job has {len(reports)}"
    for rank, report in enumerate(reports):
        if report.change:
            return f"on rank {rank}, {report.change}"
    return host_changes(shipped.hosts, tuple(report.host for report in reports))


def check_averages_evenly(shipped: Bundle, changed: str, ranks: int) -> None:
    """Raises NotSupported where torch's DDP cannot take the place of the plan: it averages ranks
    evenly, while their batches are uneven. changed: why it would have to. Where the number of
    ranks has changed, `ShareSampler` deals evenly."""
    shares = shipped.plan.shares
    if len(shares) != ranks or max(shares) - min(shares) <= SHARE_TOLERANCE:
        return
    raise NotSupported(
        f"the bundle does not fit this job ({changed}), and torch's DDP cannot take its place: it "
        f"averages ranks evenly, and the bundle gives them the shares {shares[:16]} of the batch.",
        thing="bundle.shares",
        value=shares[:16],
        remedy="Tune this job again. Until then use torch's DistributedDataParallel and "
        "DistributedSampler.",
    )


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
                in_bundle = planned[rank] == planned[other]
                where = (
                    "in the bundle, but not here" if in_bundle else "here, but not in the bundle"
                )
                return f"ranks {other} and {rank} share a host {where}"
    return ""


def matched_names(planned: Iterable[str], own: Iterable[str]) -> dict[str, str]:
    """The model's name of every planned variable; empty where they do not correspond.

    Names correspond when they are equal without wrappers' words, or when one side's are the
    other's, in the same order, each behind the same prefix. At most one prefix makes them so.
    """
    theirs, mine = list(planned), list(own)
    plain_theirs, plain_mine = _plain(theirs), _plain(mine)
    if _are_same(plain_theirs, plain_mine):
        model_name = dict(zip(plain_mine, mine, strict=True))
        return {name: model_name[p] for name, p in zip(theirs, plain_theirs, strict=True)}
    for longer, shorter in ((plain_theirs, plain_mine), (plain_mine, plain_theirs)):
        if _prefix_between(longer, shorter):
            return dict(zip(theirs, mine, strict=True))
    return {}


def modules_alike(module: str, own: Iterable[str]) -> list[str]:
    """What the model may call a module of the bundle: one name, or none, or several. own: names of
    its modules."""
    known = [name for name in own if name]
    if module in known:
        return [module]
    around = [name for name in known if name.endswith(f".{module}")]
    inside = [name for name in known if module.endswith(f".{name}")]
    return around or sorted(inside, key=len)[-1:]


def similar_names(missing: str, planned: Iterable[str], own: Iterable[str]) -> str:
    """Why a planned variable that the model lacks was not matched with one of a similar name."""
    theirs, mine = list(planned), list(own)
    inside = next((name for name in mine if missing.endswith(f".{name}")), None)
    if inside is not None:
        alike = [name for name in theirs if name.endswith(f".{inside}")]
        if len(alike) > 1:
            return f"; the model's {inside!r} could be {alike[0]!r} or {alike[1]!r} of the bundle"
        return f"; the model has {inside!r}, but not all names correspond"
    around = [name for name in mine if name.endswith(f".{missing}")]
    if len(around) > 1:
        return f"; it could be the model's {around[0]!r} or {around[1]!r}"
    return f"; the model has {around[0]!r}, but not all names correspond" if around else ""


def _plain(names: list[str]) -> list[str]:
    return [".".join(part for part in name.split(".") if part not in WRAPPERS) for name in names]


def _are_same(first: list[str], second: list[str]) -> bool:
    alike = len(first) == len(second) and set(first) == set(second)
    return alike and len(set(first)) == len(first)


def _prefix_between(longer: list[str], shorter: list[str]) -> str:
    """The common prefix of the longer names before the shorter ones; empty without one."""
    if len(longer) != len(shorter) or not shorter:
        return ""
    prefix = longer[0].removesuffix(shorter[0])
    if not prefix.endswith("."):
        return ""
    return prefix if longer == [prefix + name for name in shorter] else ""
