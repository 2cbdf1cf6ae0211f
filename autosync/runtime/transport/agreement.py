"""All ranks go on alike, or all of them raise: reports before training begins, and calls that every
rank has to make. What ends a rank while training runs is in `refusals`.

A rank that went on by itself, to torch's DDP or to another plan, would leave the others waiting in
a collective that it never joins.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.bundle import Bundle
from autosync.errors import (
    InvalidInput,
)
from autosync.plan import Plan
from autosync.runtime.device.streams import on_device
from autosync.runtime.transport.base import SynchronizationFailed, lost_peer
from autosync.runtime.transport.process_groups import CPU, Groups
from autosync.runtime.transport.refusals import Refusals, error_fields, error_of

log = logging.getLogger("autosync")

PATIENCE = timedelta(seconds=10)
"""How long a rank that cannot be attached waits for the others to read why."""

CALL_SECONDS = 5.0
"""How long a rank waits in a call that every rank has to make before it says for whom. Others may
be late for a good reason, so it goes on waiting, for the process group's timeout."""


@contextmanager
def ranks_meet() -> Iterator[None]:
    """Raises SynchronizationFailed where a peer does not come."""
    try:
        yield
    except RuntimeError as error:  # what torch raises for a broken process group or store
        raise lost_peer(
            f"the ranks did not meet to begin: {error}", "process_group", None, state_is_split=False
        ) from error


def place_of(group: Any) -> torch.device:
    """Where values are that a group moves: in host memory, if it can. group: of torch's, or a
    backend of gloo."""
    registered = isinstance(group, dist.ProcessGroup)
    return torch.device(dist.distributed_c10d._get_object_coll_device(group)) if registered else CPU


def gather_texts(group: Any, mine: str, patience: timedelta | None = None) -> list[str]:
    """What every rank says, by rank. A collective. group: of torch's, or a backend of gloo."""
    place = place_of(group)
    said = torch.frombuffer(bytearray(mine.encode()), dtype=torch.uint8).to(place)
    lengths = _gathered(group, torch.tensor([len(said)], device=place), patience)
    padded = said.new_zeros(int(max(lengths)))
    padded[: len(said)] = said
    texts = _gathered(group, padded, patience)
    pairs = zip(texts, lengths, strict=True)
    return [bytes(text[: int(length)].cpu().numpy()).decode() for text, length in pairs]


def _gathered(group: Any, mine: Tensor, patience: timedelta | None) -> list[Tensor]:
    found = [torch.empty_like(mine) for _ in range(group.size())]
    work = group.allgather([found], [mine])
    work.wait() if patience is None else work.wait(patience)
    return found


# --- before training begins


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank brings to an exchange.

    change: what of its bundle does not fit its model. given: by name, what has to be the same on
    every rank. tensors: `tensor_signatures` of its model, the same, too. error: why it cannot
    begin, as `error_fields`.
    """

    host: str = ""
    change: str = ""
    given: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    error: tuple[str, ...] = ()


def exchange_reports(
    mine: RankReport,
    group: Any,
    device: torch.device = CPU,
    patience: timedelta | None = None,
) -> tuple[RankReport, ...]:
    """Every rank's report, by rank. A collective. device: of the model.

    Raises:
        AutosyncError: on every rank, when one of them cannot begin, was given something else, or
            has another model; as the first such rank says.
        SynchronizationFailed: a peer died or did not come.
    """
    with ranks_meet(), on_device(device):
        texts = gather_texts(group, json.dumps(asdict(mine)), patience)
    reports = tuple(RankReport(**json.loads(text)) for text in texts)
    if mine.error:
        return reports
    for rank, report in enumerate(reports):
        if report.error:
            raise error_of(report.error, f"rank {rank} cannot begin: ")
    _check_alike(reports)
    check_same_tensors([report.tensors for report in reports])
    return reports


@contextmanager
def refused_everywhere(
    group: Any, device: torch.device = CPU, patience: timedelta | None = None
) -> Iterator[None]:
    """What this rank cannot do before an exchange is an error on the others too, which would wait
    for it there."""
    try:
        yield
    except Exception as error:  # modules of the script's own may raise anything
        report = RankReport(error=error_fields(error))
        with suppress(SynchronizationFailed):  # a peer that is lost does not read it
            exchange_reports(report, group, device, patience)
        raise


@contextmanager
def agreed_everywhere(
    group: Any, device: torch.device = CPU, patience: timedelta | None = None
) -> Iterator[None]:
    """All ranks can do what is inside, or all of them raise. They leave together, so that none goes
    on without one that refuses, or ends a process group which another one is still opening.

    Raises:
        AutosyncError: as the first rank that could not.
        SynchronizationFailed: a peer does not come.
    """
    with refused_everywhere(group, device, patience):
        yield
    exchange_reports(RankReport(), group, device)


def check_same_plan(group: Any, plan: Plan) -> None:
    """Raises InvalidInput on every rank when one rank's plan is not rank 0's."""
    exchange_reports(RankReport(given={"plan": plan.id}), group)


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


def _check_alike(reports: Sequence[RankReport]) -> None:
    for name, value in reports[0].given.items():
        said = {rank: report.given.get(name) for rank, report in enumerate(reports)}
        others = {rank: other for rank, other in said.items() if other != value}
        if others:
            rank, other = next(iter(others.items()))
            raise InvalidInput(
                f"ranks were given different bundles or arguments: {name} is {value} on rank 0, "
                f"{other} on rank {rank}, and unlike rank 0's on {len(others)} of {len(reports)} "
                "ranks.",
                thing=name,
                value={0: value, **others},
                remedy="Give every rank the same bundle file and arguments, and a model on the "
                "same kind of device.",
            )


def check_same_tensors(everyone: Sequence[dict[str, str]]) -> None:
    """everyone: `tensor_signatures` of each rank's model. Raises InvalidInput where one is not rank
    0's, in the same words on every rank."""
    first = everyone[0]
    for rank, other in enumerate(everyone):
        if list(other.items()) == list(first.items()):
            continue
        named = (name for name in {**first, **other} if first.get(name) != other.get(name))
        if name := next(named, ""):
            here, there = first.get(name, "missing"), other.get(name, "missing")
            what = f"{name!r} is {here} on rank 0 and {there} on rank {rank}"
        else:
            what = f"rank {rank} has its tensors in another order than rank 0"
        raise InvalidInput(
            f"the ranks' models differ: {what}.",
            thing=f"model.{name}" if name else "model",
            value=other.get(name, "missing") if name else list(other)[:8],
            remedy="Build the same model on every rank, buffers included.",
        )


# --- while training runs


@dataclass(frozen=True, slots=True)
class RankMeeting:
    """Where the ranks of one attachment meet. control: a process group of all of them, for small
    exchanges. store: with keys of this attachment only."""

    control: Any
    store: Store
    refusals: Refusals


def meeting_of(groups: Groups, control: Any) -> RankMeeting:
    """Of the next attachment of those that share the groups one after another."""
    times = groups.store.add(f"attached-by-{groups.rank}", 1)
    store = PrefixStore(f"attachment-{times}", groups.store)
    return RankMeeting(control, store, Refusals(store, groups.rank))


class CollectiveCalls:
    """Meets the other ranks at the beginning of each call that every rank has to make; a rank that
    waits in one alone says so.

    group: of all ranks, for this alone: whatever the others do meanwhile, nothing of it can be
    taken for their arrival. store: keys of one attached plan only.
    because: why every rank has to come.
    """

    def __init__(
        self,
        group: Any,
        store: Store,
        because: str = "no rank holds all of the optimizer's state",
    ):
        self._group = group
        self._store = PrefixStore("calls", store)
        self._because = because
        self._calls = 0

    def meet(self, what: str) -> None:
        """Wait until every rank has called it.

        Raises:
            DistBackendError: a rank died, or did not come in the process group's timeout.
        """
        self._calls += 1
        self._store.set(self._key(self._group.rank()), what)
        arrival = self._group.barrier(dist.BarrierOptions())
        try:
            try:
                arrival.wait(timedelta(seconds=CALL_SECONDS))
            except RuntimeError:
                if arrival.is_completed():
                    raise
                self._warn(what)
                arrival.wait()
        except RuntimeError as error:
            words = self._words(what, self._missing())
            raise dist.DistBackendError(f"{words}: {error}") from error
        if self._calls > 1:  # every rank has left the call before
            self._store.delete_key(self._key(self._group.rank(), self._calls - 1))

    def _warn(self, what: str) -> None:
        if missing := self._missing():
            message = (
                f"{self._words(what, missing)} in {CALL_SECONDS:g} s. Under this plan "
                f"{self._because}, and {what} gathers it: call it on every rank, and write the "
                "file on one."
            )
            log.warning(message)
            warnings.warn(message, stacklevel=3)

    def _missing(self) -> list[int]:
        ranks = range(self._group.size())
        return [rank for rank in ranks if not self._store.check([self._key(rank)])]

    def _words(self, what: str, missing: list[int]) -> str:
        here = f"rank {self._group.rank()} waits in {what}"
        if not missing:
            return f"{here} for a rank that has called it too"
        others = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {missing} have"
        return f"{here}, which {others} not called"

    def _key(self, rank: int, call: int = 0) -> str:
        return f"{call or self._calls}/{rank}"
