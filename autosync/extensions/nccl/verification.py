"""Where a strategy may state knobs of NCCL, and how they are described."""

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.nccl_knobs import NcclKnobs
from autosync.strategy import Strategy

PLAIN_SUMS_ONLY = ("NVLS", "NVLSTree")
"""NCCL's `ncclNvlsSupported`: switches add up, and neither average nor multiply first."""
WEIGHED = ("reduce_scatter", "reduce")
"""Operations that multiply by shares as they add up (`compression.half.multiplies_by_shares`)."""


def check_strategy(strategy: Strategy) -> None:
    """Raises InvalidStrategy where they state nothing, or an algorithm that cannot run what a plan
    sends: its reductions weigh the ranks' gradients by their shares."""
    knobs = strategy.extension(NcclKnobs)
    assert knobs is not None
    if knobs == NcclKnobs():
        raise InvalidStrategy(
            "the strategy's nccl states nothing.",
            thing="nccl",
            value="{}",
            remedy="Leave it out, or state ranges, CTAs, sockets or pxn.",
        )
    for each in knobs.ranges if not strategy.run_by_torch else ():
        if each.algorithm in PLAIN_SUMS_ONLY and each.operation in WEIGHED:
            raise InvalidStrategy(
                f"the strategy forces {each.algorithm} for {each.operation}, which adds up plain "
                "sums only, and that operation of a plan weighs each rank by its share.",
                thing="nccl.ranges",
                value=each.algorithm,
                remedy="Force it for all_reduce, or force Ring or Tree.",
            )


def verify(strategy: Strategy, domain: Domain, allow_inexact: bool) -> None:
    """Raises InvalidStrategy as `check_strategy`, or where messages do not travel by NCCL."""
    check_strategy(strategy)
    if domain.cluster.backend != "nccl":
        raise InvalidStrategy(
            f"the strategy states knobs of NCCL, and messages travel by {domain.cluster.backend}.",
            thing="nccl",
            value=domain.cluster.backend,
            remedy="Leave nccl out, or write `backend: nccl` into the cluster file.",
        )


def describe(strategy: Strategy, domain: Domain | None) -> list[str]:
    """What is set, in the words of NCCL."""
    return [f"NCCL with {', '.join(_words(strategy))}"]


def label(strategy: Strategy) -> str:
    return ", ".join(_words(strategy))


def _words(strategy: Strategy) -> list[str]:
    knobs = strategy.extension(NcclKnobs)
    assert knobs is not None
    found = []
    for each in knobs.ranges:
        size = f" from {each.least_bytes} bytes on" if each.least_bytes else ""
        lanes = f" on {each.channels} channels" if each.channels else ""
        found.append(f"{each.algorithm}/{each.protocol} {each.operation}{size}{lanes}")
    if knobs.min_ctas:
        found.append(f"at least {knobs.min_ctas} CTAs")
    if knobs.max_ctas:
        found.append(f"at most {knobs.max_ctas} CTAs")
    if knobs.cga_cluster_size is not None:
        found.append(f"clusters of {knobs.cga_cluster_size} CTAs")
    if knobs.socket_threads or knobs.sockets_per_thread:
        found.append(f"{knobs.sockets} sockets a connection")
    if knobs.pxn is not None:
        found.append("PXN" if knobs.pxn else "no PXN")
    return found
