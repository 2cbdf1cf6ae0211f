from tests.api.conftest import postgresql, sqlite_template, sqlite_url

__all__ = ["postgresql", "sqlite_template", "sqlite_url"]
