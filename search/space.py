"""The space that a search draws from, and the choices a user pins."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from autosync.documents import STRICT
from autosync.strategy import Encoding, Strategy, VariableChoice


@dataclass(frozen=True, slots=True)
class Space:
    """Which choices the sampler may take. The defaults are everything exact that the runtime runs.

    whole_below_bytes, max_parts, max_groups: AutoSync's published sampler keeps variables under
        100 KB whole, cuts into at most 40 parts and merges into at most 20 groups.
    slice_bytes: slice sizes to draw from; 0 does not slice.
    encodings: lossless only, unless the user allows more.
    uneven_shares: also draw batch shares proportional to the devices' speed; off by default,
        since the training script must deal its data accordingly.
    pins: choices the search must keep, by variable. Pinned shards share a message only among
        themselves, as their group numbers say.
    """

    parameter_server: bool = True
    all_reduce: bool = True
    reduce_scatter: bool = True
    hierarchical: bool = True
    factors: bool = True
    priority: bool = True
    overlap_forward: bool = True
    whole_below_bytes: int = 100_000
    max_parts: int = 40
    max_groups: int = 20
    slice_bytes: tuple[int, ...] = (0, 1 << 20, 4 << 20, 16 << 20)
    encodings: tuple[Encoding, ...] = (Encoding(),)
    uneven_shares: bool = False
    pins: tuple[VariableChoice, ...] = ()
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy worth a trial.

    origin: `sampled` (then `seed` and `index` identify it in the population) or the name of the
        hand-designed builder that made it.
    """

    strategy: Strategy
    predicted_seconds: float
    simulator: str
    origin: str
    seed: int = 0
    index: int = -1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
