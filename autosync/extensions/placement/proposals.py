"""Proposals of this extension."""

from autosync.search.extension_proposals import Proposer
from autosync.search.space import Space
from autosync.strategy import Strategy


class PlacementProposer(Proposer):
    def lies_in(self, strategy: Strategy, space: Space) -> bool:
        return space.placement


PROPOSER = PlacementProposer()
