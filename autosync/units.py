"""Units of bytes."""

MIB = 1 << 20
"""A mebibyte."""
