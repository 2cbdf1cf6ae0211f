"""Units of bytes, and how seconds, bytes and counts are written for readers."""

from fractions import Fraction

MIB = 1 << 20
"""A mebibyte."""


def milliseconds(seconds: float | None) -> str:
    """`12.3 ms`, with two decimals below 10 ms and none from a second on; a dash for None."""
    if seconds is None:
        return "–"
    value = seconds * 1e3
    digits = 2 if value < 10 else 1 if value < 1000 else 0
    return f"{round(value, digits) + 0.0:,.{digits}f} ms"  # 0.00, not -0.00


def milliseconds_between(low_seconds: float, high_seconds: float) -> str:
    """`118.2 to 131.0 ms`, each end as `milliseconds` writes it."""
    return f"{milliseconds(low_seconds).removesuffix(' ms')} to {milliseconds(high_seconds)}"


def scales_in_words(byte_scale: float, time_scale: float) -> str:
    """`1/64 of the bytes, 2 times slower`; empty where neither is scaled."""
    words = []
    if byte_scale != 1:
        words.append(f"{fraction_in_words(byte_scale)} of the bytes")
    if time_scale != 1:
        slower = time_scale > 1
        ratio = time_scale if slower else 1 / time_scale
        words.append(f"{ratio:g} times {'slower' if slower else 'faster'}")
    return ", ".join(words)


def fraction_in_words(share: float) -> str:
    """`1/64`; a decimal number where no fraction with a small denominator is near."""
    fraction = Fraction(share).limit_denominator(1024)
    near = abs(float(fraction) - share) <= 1e-3 * abs(share)
    return str(fraction) if near and fraction else f"{share:.3g}"


def bytes_in_words(size: float | None) -> str:
    """`4.1 MB`, in powers of 1,000; a dash for None."""
    if size is None:
        return "–"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.{1 if size < 100 * unit else 0}f} {name}"
    return f"{size:.0f} B"


def counted(count: int, one: str, several: str = "") -> str:
    """`1 node`, `12,000 nodes`. several: the plural, where it is not the word with an s."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def number_in_words(value: float) -> str:
    """`1,234` or `0.412`: whole numbers from 100 on, else three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def percent_in_words(percent: float) -> str:
    """`87 %`; `99.6 %` where a whole number would call 100 what is less."""
    return f"{min(percent, 99.9):.1f} %" if 99.5 <= percent < 100 else f"{percent:.0f} %"
