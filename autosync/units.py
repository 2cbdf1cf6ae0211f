"""Units of bytes, and how seconds and bytes are written for readers."""

MIB = 1 << 20
"""A mebibyte."""


def milliseconds(seconds: float | None) -> str:
    """`12.3 ms`, with three or more significant digits; a dash for None."""
    if seconds is None:
        return "–"
    value = seconds * 1e3
    digits = 2 if value < 10 else 1 if value < 1000 else 0
    return f"{value:,.{digits}f} ms"


def bytes_in_words(size: float | None) -> str:
    """`4.1 MB`, in powers of 1,000; a dash for None."""
    if size is None:
        return "–"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.{1 if size < 100 * unit else 0}f} {name}"
    return f"{size:.0f} B"
