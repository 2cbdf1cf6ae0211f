from tests.api.fixtures import postgresql, sqlite_template, sqlite_url

__all__ = ["postgresql", "sqlite_template", "sqlite_url"]
