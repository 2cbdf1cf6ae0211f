"""Knobs of NCCL for the fastest strategies that were measured, where a space allows it.

NCCL's own choices are among what is predicted, so a forced one is never predicted faster: trials
tell. They come last, since each starts the ranks anew.
"""

import numpy as np

from autosync.domain import Domain
from autosync.extensions.nccl.verification import check_strategy
from autosync.nccl_knobs import NcclKnobs, NcclRange
from autosync.search.extension_proposals import ProposalRequest, Proposer
from autosync.search.loop.predicted_candidates import carried_candidates
from autosync.search.loop.tuning_store import Candidate, Origin
from autosync.search.space import Space
from autosync.simulator.backends.nccl import Forced, collective_times
from autosync.simulator.backends.nccl.algorithms import candidates
from autosync.simulator.cost.collective_costs import has_collective_model
from autosync.simulator.topology import Topology, topology_of
from autosync.strategy import Strategy

BASES = 2
"""The fastest measured strategies, whose knobs are tried."""
SHARE_OF_BUDGET = 0.5
"""Of the trials, after which knobs are tried."""
SLOWER_AT_MOST = 1.3
"""Times the seconds of NCCL's predicted choice that another algorithm may take."""
CTA_SHARES = (0.5, 0.25)
"""Of the channels that NCCL runs, left to its kernels."""
SOCKETS = ((2, 2), (4, 2), (4, 4))
"""Threads and sockets of each, over TCP: up to what clouds set for their fastest networks."""
ORIGIN: Origin = "nccl_knobs"


class NcclProposer(Proposer):
    def lies_in(self, strategy: Strategy, space: Space) -> bool:
        return space.nccl_knobs or strategy.extension(NcclKnobs) is None

    def candidates(self, request: ProposalRequest) -> list[Candidate]:
        """None before half of the budget is spent."""
        domain, store = request.domain, request.store
        least = SHARE_OF_BUDGET * request.settings.budget
        is_late = store is not None and len(store.trials()) >= least
        if not (request.space.nccl_knobs and is_late and has_collective_model(domain.cluster)):
            return []
        fastest = [each for each in request.bases if not each.extensions][:BASES]
        knobs = knobs_to_try(domain)
        return carried_candidates(request, fastest, knobs, check_strategy, ORIGIN)


def knobs_to_try(domain: Domain) -> list[NcclKnobs]:
    """One change each: another algorithm and protocol of the all-reduce of all gradients, fewer
    CTAs, more sockets, no PXN."""
    topology = topology_of(domain.cluster)
    found = [NcclKnobs((each,)) for each in _other_algorithms(topology, domain.graph.size_bytes)]
    channels = candidates(topology, "all_reduce")[0].channels
    found += [NcclKnobs(max_ctas=max(1, int(channels * share))) for share in CTA_SHARES]
    if topology.transport == "tcp":
        found += [NcclKnobs(socket_threads=one, sockets_per_thread=each) for one, each in SOCKETS]
    if topology.nodes > 1 and topology.gpus_per_node > 1 and topology.nvlink:
        found.append(NcclKnobs(pxn=False))
    return found


def _other_algorithms(topology: Topology, size_bytes: int) -> list[NcclRange]:
    """Those that may be faster than what NCCL is predicted to choose, the fastest first."""
    sizes = np.array([float(size_bytes)])
    own = collective_times(topology, "all_reduce", sizes)
    chosen = own.algorithm[0], own.protocol[0]
    found: list[tuple[float, NcclRange]] = []
    for each in candidates(topology, "all_reduce"):
        if each.algorithm == "CollNet" or (each.algorithm, each.protocol) == chosen:
            continue
        forced = Forced(each.algorithm, each.protocol)
        seconds = float(collective_times(topology, "all_reduce", sizes, forced).seconds[0])
        if seconds <= SLOWER_AT_MOST * own.seconds[0]:
            # type: the model's names of them are those of the document
            found.append((seconds, NcclRange("all_reduce", each.algorithm, each.protocol)))  # type: ignore[arg-type]
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


PROPOSER = NcclProposer()
