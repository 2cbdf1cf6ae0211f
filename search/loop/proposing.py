"""Chooses the strategies to try next: hand-designed ones first, then the most promising of all
sources.

Each source (designs that were not tried yet, random draws, local searches from the fastest
measured, their neighbours) has its share of a round's trials (`sources`).
"""

from collections.abc import Sequence

from autosync.domain import Domain
from autosync.search.extension_proposals import ProposalRequest, extension_candidates, retries
from autosync.search.loop.bucket_curve import bucket_candidates
from autosync.search.loop.design_candidates import earned_designs, known_designs, with_refined
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.earlier_trials import canaries, designs_again
from autosync.search.loop.fusion_tuning import tuned_fusion
from autosync.search.loop.outcome import DDP, MeasuredRow, OnEvent, rank_measured
from autosync.search.loop.settings import Settings
from autosync.search.loop.sources import INSURED_SHARE, Searched, Sources, quota, round_shares
from autosync.search.loop.tuning_store import SEARCHES, Candidate, Proposal, Store
from autosync.search.space import Space
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy

ROUND_TRIALS = 4
"""Trials between two refits."""

EXTENDED_SHARE = 0.25
"""Of a round's trials, that are of candidates which extensions make of others: the timeline, which
alone judges them, puts placed modules 6 % too low."""


def propose(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    store: Store,
    settings: Settings,
    left: int,
    on_event: OnEvent,
    earlier: EarlierTrials | None = None,
) -> list[Proposal]:
    """The next round. The first one is of hand-designed strategies, DDP before all. Later ones are
    what failed once more in another form (`retries`), one fusion buffer tuned by the trials,
    designs that could still be the fastest, and what each search finds. None where the search has
    nothing left to gain (`settings.least_gain`): then only what is due once more, if anything.

    earlier: of another tuning. Its canaries are the first round, and its other strategies stand
    among the hand-designed ones of later rounds."""
    stored = store.proposals()
    number = 1 + max((proposal.round for proposal in stored), default=-1)
    if earlier is not None and number == 0:
        return proposals_of(canaries(domain, simulator, earlier, left), number)
    if space.only == "buckets":
        chosen = bucket_candidates(domain, simulator, store, settings, left)
        return proposals_of(chosen, number)
    tried = [each.candidate.strategy for each in stored]
    fastest = [row for row in rank_measured(stored, store.trials()) if row.step_seconds]
    best_seconds = fastest[0].step_seconds if fastest else None
    slots = min(left, ROUND_TRIALS)
    later = sum(each.round > 0 for each in stored)
    due: list[Candidate] = []  # whatever else promises nothing
    if number == (0 if earlier is None else 1):
        chosen = _first_designs(domain, space, simulator, tried, settings, left, earlier)
        slots = min(left, max(ROUND_TRIALS, len(chosen)))
    else:
        due = retries(domain, space, simulator, store)[:slots]
        chosen = due + tuned_fusion(domain, space, simulator, store)[: slots - len(due)]
        most = min(quota(settings.design_share, later, slots), slots - len(chosen))
        known = [*(each.candidate for each in stored), *chosen]
        chosen += earned_designs(domain, space, simulator, known, best_seconds, most, earlier)
        chosen += _extended(domain, space, simulator, store, settings, fastest, chosen, slots)
    gains = [1 - c.predicted_seconds / best_seconds for c in chosen if best_seconds is not None]
    searched = Searched.after(domain, simulator, fastest, settings)
    parents, sharded = len(searched.parents), searched.shardings
    had = sum(each.round > 0 and each.candidate.origin in SEARCHES for each in stored)
    shares = round_shares(settings, slots - len(chosen), parents, had, sharded)
    insured = quota(INSURED_SHARE, later, slots)
    sources = Sources(domain, space, simulator, settings, number, best_seconds, searched, on_event)
    beside = [*tried, *(each.strategy for each in chosen)]
    found, expected = sources.candidates(shares, insured, beside)
    chosen += found
    gains += expected
    ends = settings.least_gain > 0 and max(gains, default=0.0) < settings.least_gain
    if number > 0 and ends:
        chosen = due
    return proposals_of(chosen, number)


def _first_designs(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    tried: Sequence[Strategy],
    settings: Settings,
    left: int,
    earlier: EarlierTrials | None,
) -> list[Candidate]:
    """The most promising designs, refined ones among them, as many as the settings say, and what
    extensions make of them: then DDP first, all others by prediction."""
    slots = min(left, settings.first_designs, max(1, settings.budget // 2))
    designs = known_designs(domain, space, simulator)
    if earlier is not None:
        designs = designs_again(domain, simulator, earlier, designs, tried)
    designs = with_refined(domain, space, simulator, designs, settings.seed, tried)
    bases = [each.strategy for each in designs]
    request = ProposalRequest(domain, space, simulator, bases, settings, tried=tried)
    if not (found := extension_candidates(request)[: int(EXTENDED_SHARE * slots)]):
        return designs[:slots]
    joined = [*designs[: slots - len(found)], *found]
    return sorted(joined, key=lambda each: (each.origin != DDP, each.predicted_seconds))


def _extended(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    store: Store,
    settings: Settings,
    fastest: Sequence[MeasuredRow],
    chosen: Sequence[Candidate],
    slots: int,
) -> list[Candidate]:
    """What extensions make of the fastest in a later round, beside what is chosen already."""
    if not fastest:
        return []
    tried = [each.candidate for each in store.proposals()]
    request = ProposalRequest(
        domain,
        space,
        simulator,
        [row.candidate.strategy for row in fastest],
        settings,
        tried=[each.strategy for each in (*tried, *chosen)],
        store=store,
    )
    return extension_candidates(request)[: int(EXTENDED_SHARE * (slots - len(chosen)))]


def proposals_of(chosen: Sequence[Candidate], number: int) -> list[Proposal]:
    """Round `number` of a search."""
    return [
        Proposal(f"search/{number}/{candidate.strategy.id}", "search", number, candidate)
        for candidate in chosen
    ]
