"""Proposals of this extension."""

from autosync.search.extension_proposals import Proposer
from autosync.search.space import Space
from autosync.strategy import Strategy


class OffloadProposer(Proposer):
    def lies_in(self, strategy: Strategy, space: Space) -> bool:
        return space.swapping


PROPOSER = OffloadProposer()
