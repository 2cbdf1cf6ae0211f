"""AutoSync's own tunings in the live contest."""

import json
from collections.abc import Sequence
from dataclasses import replace

from autosync.documents import from_data
from autosync.errors import InvalidInput
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_loop import tune
from autosync.search.loop.tuning_store import Phase
from autosync.search.space import Space
from benchmarks.contest.contest_ring import PLAN, BorrowedPool, Contestant, Ring, in_ms, row_of
from benchmarks.contest.live_records import FileStore

OWN = "autosync_"
"""What AutoSync's competitors' names begin with; the number of trials follows."""


def tune_with(ring: Ring, budget: int) -> None:
    """A tuning of so many trials, without its confirmation: the finals take its place."""
    name = tuning_name(budget)
    store, told = tuning_store(ring, budget), len(ring.file.of("search", name))
    if told and told == len(store.trials()):
        return
    settings = replace(
        ring.settings.search,
        budget=budget,
        warmup=ring.given.warmup,
        iterations=ring.given.iterations,
        probe=False,  # the domain brings its costs
    )

    def stop(phase: Phase) -> bool:
        ring.settings.check_time()
        return phase == "confirm"

    def on_event(event: TuningEvent) -> None:
        if event.kind == "search":
            best = in_ms(event.best_seconds)
            ring.say(f"{name} {event.done} of {event.total}: {event.message}, best {best}")

    pool = BorrowedPool(ring.pool, name)
    tune(ring.domain, Space(), lambda: pool, store, ring.simulator(), settings, on_event, stop)
    origins = {each.key: each.candidate for each in store.proposals()}
    for number, trial in list(enumerate(store.trials()))[told:]:
        candidate = origins[trial.key]
        label = candidate.strategy.name or candidate.origin
        contestant = Contestant(label, PLAN, candidate.strategy)
        ring.file.add(row_of("search", name, number, contestant, trial))


def tuning_name(budget: int) -> str:
    return f"{OWN}{budget}"


def tuning_store(ring: Ring, budget: int) -> FileStore:
    return FileStore(ring.folder / "live" / f"{ring.given.name}.{tuning_name(budget)}.jsonl")


def search_settings(stated: Sequence[str]) -> Settings:
    """The defaults but for what is stated, as NAME=VALUE.

    Raises:
        InvalidInput: a value is no number, or no setting has the name.
    """
    values = {}
    for each in stated:
        name, _, value = each.partition("=")
        try:
            values[name] = json.loads(value)
        except ValueError:
            raise InvalidInput(
                f"--search {each!r} is not NAME=VALUE with a number.",
                thing="--search",
                value=each,
                remedy="For instance --search refined_share=0 first_designs=30.",
            ) from None
    return from_data(Settings, values, source="--search")
