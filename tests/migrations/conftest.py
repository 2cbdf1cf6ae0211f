from tests.api.conftest import postgresql

__all__ = ["postgresql"]
