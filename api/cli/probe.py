"""placeholder"""


def probe() -> None:
    """placeholder"""
