from tests.api.fixtures import postgresql

__all__ = ["postgresql"]
