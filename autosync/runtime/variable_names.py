"""The bundle's variables among the model's parameters, though their names begin differently.

A graph is often imported from a wrapper that computes the loss (`model.layer.weight`), while the
script distributes the model inside (`layer.weight`), or the other way around; torch.compile and
checkpoint wrappers put a word of their own into a name.
"""

from collections.abc import Iterable

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""What torch.compile and torch's checkpoint_wrapper put into the names of what they hold."""


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


def similar_names(missing: str, planned: Iterable[str], own: Iterable[str]) -> str:
    """Why a planned variable that the model lacks was not taken for one that is called alike."""
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
    """What every longer name has before the shorter one at its place; empty without one."""
    if len(longer) != len(shorter) or not shorter:
        return ""
    prefix = longer[0].removesuffix(shorter[0])
    if not prefix.endswith("."):
        return ""
    return prefix if longer == [prefix + name for name in shorter] else ""
