"""What a chart is: two drawings of one thing, and the table behind it."""

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from autosync.api.http.charts.svg_elements import svg_element

NARROW = 340
"""Pixels a phone has room for: what is drawn for it has letters that can be read there."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is in the picture, and how large it is in pixels."""

    width: float
    height: float
    parts: tuple[Markup, ...]

    def svg(self, words: str) -> Markup:
        """words: what a screen reader tells."""
        return svg_element(
            "svg",
            *self.parts,
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            width=self.width,
            height=self.height,
            role="img",
            aria_label=words,
            class_="drawing",
        )


@dataclass(frozen=True, slots=True)
class Chart:
    """name: of its element. title, note: above it. words: what it says, for who cannot see it.
    drawings: each with the class of what holds it, which says on which screens it is shown.
    keys: class and words of each colour. columns, rows: the table behind it; footnote: below."""

    name: str
    title: str
    note: str
    words: str
    drawings: tuple[tuple[str, Markup], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[tuple[str, str], ...] = ()
    footnote: str = ""


def drawings(
    draw: Callable[[int], Drawing], words: str, width: int, narrow: bool = True
) -> tuple[tuple[str, Markup], ...]:
    """For wide screens and, in letters of the same size, for phones; alone it can be scrolled."""
    wide = draw(width).svg(words)
    if not narrow:
        return (("scrolled", wide),)
    return (("wide-only", wide), ("narrow-only", draw(NARROW).svg(words)))


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.{2 if seconds < 0.01 else 1}f} ms"


def bytes_in_words(size: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.{1 if size < 100 * unit else 0}f} {name}"
    return f"{size:.0f} B"
