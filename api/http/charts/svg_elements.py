"""SVG as text: whatever goes in is escaped."""

from markupsafe import Markup, escape


def svg_element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """`<tag ...>children</tag>`. Attributes lose a trailing underscore (`class_`) and have hyphens
    for the others; None leaves one out; numbers keep one digit after the point."""
    given = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _shown(value))
        for name, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(escape(child) for child in children)
    return Markup("<{tag}{given}>{inner}</{tag}>").format(tag=tag, given=given, inner=inner)


def text_at(text: str, x: float, y: float, anchor: str = "start", class_: str = "") -> Markup:
    """Words at a place."""
    return svg_element("text", text, x=x, y=y, text_anchor=anchor, class_=class_ or None)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return svg_element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rectangle(
    x: float, y: float, width: float, height: float, class_: str, tip: str = ""
) -> Markup:
    """tip: shown on hovering."""
    inner = (svg_element("title", tip),) if tip else ()
    size = {"width": max(width, 0.5), "height": max(height, 0.5)}
    return svg_element("rect", *inner, x=x, y=y, **size, class_=class_)


def dot(x: float, y: float, radius: float, class_: str, tip: str = "") -> Markup:
    """tip: shown on hovering."""
    inner = (svg_element("title", tip),) if tip else ()
    return svg_element("circle", *inner, cx=x, cy=y, r=radius, class_=class_)


def path(points: list[tuple[float, float]], class_: str) -> Markup:
    """A line through the points."""
    steps = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    return svg_element("path", d=steps, class_=class_)


def _shown(value: str | float | None) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
