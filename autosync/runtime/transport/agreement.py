"""All ranks go on alike, or all of them raise: reports before training begins, refusals through a
store while it runs, and calls that every rank has to make.

A rank that went on by itself, to torch's DDP or to another plan, would leave the others waiting in
a collective that it never joins.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from hashlib import sha256
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.bundle import Bundle
from autosync.errors import (
    AutosyncError,
    BudgetTooSmall,
    DeviceMemoryExceeded,
    InvalidInput,
    NotSupported,
)
from autosync.plan import Plan
from autosync.runtime.device.streams import on_device
from autosync.runtime.transport.base import SynchronizationFailed, lost_peer
from autosync.runtime.transport.process_groups import CPU, Groups

log = logging.getLogger("autosync")

PATIENCE = timedelta(seconds=10)
"""How long a rank that cannot be attached waits for the others to read why."""

CALL_SECONDS = 5.0
"""How long a rank waits in a call that every rank has to make before it says for whom. Others may
be late for a good reason, so it goes on waiting, for the process group's timeout."""

STORE_SECONDS = 2.0
"""How long a store may take to answer; its own rank may be gone."""

KINDS = {
    kind.__name__: kind
    for kind in (
        BudgetTooSmall,
        DeviceMemoryExceeded,
        InvalidInput,
        NotSupported,
        SynchronizationFailed,
    )
}
"""Of errors that ranks report to each other; others are raised there as InvalidInput."""

REFUSAL, CAUGHT, DROPPED = "refusal", "caught", "dropped"
"""Keys of what ranks post while training runs; see `Refusals`."""


@contextmanager
def ranks_meet() -> Iterator[None]:
    """Raises SynchronizationFailed where a peer does not come."""
    try:
        yield
    except RuntimeError as error:  # what torch raises for a broken process group or store
        raise lost_peer(
            f"the ranks did not meet to begin: {error}", "process_group", None, state_is_split=False
        ) from error


def gather_texts(group: Any, mine: str, patience: timedelta | None = None) -> list[str]:
    """What every rank says, by rank. A collective. group: of torch's, or a backend of gloo."""
    registered = isinstance(group, dist.ProcessGroup)
    place = dist.distributed_c10d._get_object_coll_device(group) if registered else "cpu"
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
    begin, as `_posted`.
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
            raise _raised(report.error, f"rank {rank} cannot begin: ")
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
        report = RankReport(error=_posted(error))
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
                remedy="Give every rank the same bundle file and the same arguments.",
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


class Refusals:
    """Why a rank stopped in the middle of training, for the ranks that wait for it.

    Three kinds of entries, one of each:

    - A refusal (`post` with final): this rank cannot go on. Every rank that waits looks for it once
      in LOOK_SECONDS, and ends with it.
    - An error of a call of the script (`post`): the script may catch it, spend any time on
      something else, and go on. So it ends no rank by itself: it names the cause where another rank
      can't go on without this one, because a message failed or its timeout has passed. A `step()`
      that succeeds withdraws it. It becomes a refusal when this rank leaves: its script ends or
      takes the plan off.
    - A dropped iteration (`drop`): this rank went on without the `step()` of an iteration, and will
      never send its new values. It ends those that wait for them, and no rank that dropped the
      iteration too.

    store: with keys of one attached plan only.
    """

    def __init__(self, store: Store, rank: int):
        self._store = store
        self._rank = rank
        self._mine = ""

    def post(self, error: AutosyncError, final: bool = False) -> None:
        """Before this rank ends its process groups, or stays away from what the others wait for.
        The first entry of a kind stays: that is the cause. final: this rank cannot go on, whatever
        its script does."""
        text = self._text(error)
        if not final:
            self._mine = text
        self._set_first(REFUSAL if final else CAUGHT, text)

    def withdraw(self) -> None:
        """This rank is in step with the others again: its script has caught what it had posted."""
        if text := self._mine:
            self._mine = ""
            _within(STORE_SECONDS, lambda: self._store.compare_set(CAUGHT, text, ""))

    def leave(self) -> None:
        """This rank takes no further part: an error that it has not withdrawn is final."""
        if text := self._mine:
            self._set_first(REFUSAL, text)

    def drop(self, iteration: int, otherwise: AutosyncError) -> None:
        """This rank goes on without the `step()` of an iteration. otherwise: says so where no error
        of its own is posted."""
        text = json.dumps([iteration, *json.loads(self._mine or self._text(otherwise))])
        _within(STORE_SECONDS, lambda: self._store.set(DROPPED, text))

    def find(self, stepped: int = -1) -> AutosyncError | None:
        """What ends this rank, posted by another one; None where this rank has posted the same:
        where every rank refuses, their scripts may go on together, and take the plan off. stepped:
        the last iteration that this rank has stepped."""
        return self._first(stepped, (REFUSAL, DROPPED))

    def cause(self, stepped: int = -1) -> AutosyncError | None:
        """As `find`, where this rank cannot go on: also an error that another one's script may have
        caught."""
        return self._first(stepped, (REFUSAL, DROPPED, CAUGHT))

    def _first(self, stepped: int, keys: Sequence[str]) -> AutosyncError | None:
        mine = json.loads(self._mine)[1:] if self._mine else None
        found: list[AutosyncError] = []

        def look() -> None:
            for key in keys:
                text = self._store.get(key) if self._store.check([key]) else b""
                entry = json.loads(text) if text else None
                if entry and key == DROPPED:
                    entry = entry[1:] if entry[0] == stepped else None
                if entry and entry[0] != self._rank and entry[1:] != mine:
                    found.append(_raised(entry[1:], f"rank {entry[0]} stopped: "))
                    return

        _within(STORE_SECONDS, look)
        return found[0] if found else None

    def _text(self, error: AutosyncError) -> str:
        return json.dumps([self._rank, *_posted(error)])

    def _set_first(self, key: str, text: str) -> None:
        _within(STORE_SECONDS, lambda: self._store.compare_set(key, "", text))


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


def reported(error: Exception, where: str) -> AutosyncError:
    """What has ended a call of the script's, as other ranks read it. Of the script's own code it
    may be any error; the others then miss what this rank was to send. where: the call."""
    if isinstance(error, AutosyncError):
        return error
    kind = type(error).__name__
    made = SynchronizationFailed(
        f"{where} ended with {kind}: {error}",
        thing=where,
        value=kind,
        remedy="See that rank's log, and start all ranks again from the last checkpoint.",
    )
    made.__cause__ = error
    return made


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


# --- errors as text


def _posted(error: Exception) -> tuple[str, ...]:
    """Kind, message, thing, value, remedy."""
    if not isinstance(error, AutosyncError):
        kind = type(error).__name__
        thing, remedy = "autosync.distribute", "See that rank's log."
        error = InvalidInput(f"{kind}: {error}", thing=thing, value=kind, remedy=remedy)
    return type(error).__name__, error.message, error.thing, str(error.value), error.remedy


def _raised(posted: Sequence[str], said_by: str) -> AutosyncError:
    kind, message, thing, value, remedy = posted
    made = KINDS.get(kind, InvalidInput)
    return made(said_by + message, thing=thing, value=value, remedy=remedy)


def _within(seconds: float, act: Callable[[], object]) -> None:
    """On a thread of its own, which nobody waits for any longer."""

    def attempt() -> None:
        with suppress(RuntimeError):  # what torch raises for a broken store
            act()

    thread = Thread(target=attempt, name="autosync-refusal", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python 3.12 starts no thread while the interpreter ends
        attempt()
        return
    thread.join(seconds)
