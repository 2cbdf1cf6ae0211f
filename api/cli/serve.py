"""placeholder"""


def serve() -> None:
    """placeholder"""
