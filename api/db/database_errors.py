"""Errors of a database that its operator can mend, told apart from defects of this program."""

import sqlite3

from sqlalchemy.exc import DatabaseError, OperationalError

from autosync.errors import NotSupported

SQLITE_TROUBLES = {
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: its folder cannot be read or written to",
    sqlite3.SQLITE_READONLY: "cannot be written to",
    sqlite3.SQLITE_PERM: "may not be accessed",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_NOTADB: "is a file of another kind",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_BUSY: "is locked by another process",
}
"""By primary result code (sqlite.org/rescode.html). Others, as of a missing table, are defects."""
PRIMARY_CODE = 0xFF


def database_trouble(error: Exception) -> NotSupported | None:
    """What its operator can mend; None for any other error."""
    if not isinstance(error, DatabaseError):
        return None
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", 0) & PRIMARY_CODE
        if code not in SQLITE_TROUBLES:
            return None
        return NotSupported(
            f"the database {SQLITE_TROUBLES[code]} ({error.orig}).",
            thing="database",
            remedy="See to the file, its folder and the space left there, or name another with "
            "--db. What was stored stays.",
        )
    if isinstance(error, OperationalError) and type(error.orig).__module__.startswith("psycopg"):
        lines = str(error.orig).strip().splitlines() or ["no reason given"]
        return NotSupported(
            f"the database does not answer: {lines[0]}.",
            thing="database",
            remedy="See that it runs and that --db names it.",
        )
    return None
