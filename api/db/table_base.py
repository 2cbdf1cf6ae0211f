"""What all tables have in common. Documents are canonical JSON under the hash of their content.

They are megabytes, so a row is read without its document until that is asked for.
"""

from sqlalchemy import BigInteger, Double, Integer, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase

Hash = String(32)
"""32 hex digits; see `autosync.documents.content_hash`."""
RowNumber = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only where the type is spelled INTEGER."""


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {float: Double, str: Text}  # noqa: RUF012  # as SQLAlchemy reads it
