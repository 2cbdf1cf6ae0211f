"""What people write beside a tuning: tags, a note, and whether it is archived."""

from autosync.api.db.database import Database
from autosync.api.db.lookup import stored
from autosync.api.db.tables import FINAL, TuningRow
from autosync.api.spec import LONGEST_NOTE, LONGEST_TAG, MOST_TAGS
from autosync.errors import InvalidInput, NotSupported


def write_notes(
    database: Database,
    tuning_id: str,
    tags: str | None = None,
    note: str | None = None,
    archived: bool | None = None,
) -> None:
    """What is None stays as it is. tags: words between spaces or commas; one that comes twice is
    kept once. archived: out of the lists, or back in.

    Raises:
        NotFound: no such tuning. InvalidInput: too many tags, or too long ones. NotSupported: it
            has not ended, so nobody should lose sight of it.
    """
    words = None if tags is None else _checked_tags(tags)
    if note is not None and (len(note) > LONGEST_NOTE or "\0" in note):
        why = f"the note has {len(note)} characters, or one that is no text"
        raise _refused("note", why, f"Use at most {LONGEST_NOTE} characters of text.")
    with database.writing() as session:
        tuning = stored(session, TuningRow, tuning_id, "tuning")
        if archived and tuning.state not in FINAL:
            raise NotSupported(
                f"tuning {tuning_id} is {tuning.state} and cannot be archived.",
                thing="tuning",
                value=tuning.state,
                remedy="Cancel it first, or wait until it has ended.",
            )
        tuning.tags = tuning.tags if words is None else " ".join(words)
        tuning.note = tuning.note if note is None else note.strip()
        tuning.archived = tuning.archived if archived is None else archived


def archive(database: Database, tuning_id: str, archived: bool) -> None:
    """As `write_notes`."""
    write_notes(database, tuning_id, archived=archived)


def _checked_tags(tags: str) -> list[str]:
    words = list(dict.fromkeys(tags.replace(",", " ").split()))
    if len(words) > MOST_TAGS:
        raise _refused("tags", f"there are {len(words)} tags", f"Give at most {MOST_TAGS}.")
    for word in words:
        if len(word) > LONGEST_TAG or not word.isprintable():
            why = f"the tag {word[:LONGEST_TAG]!r} is too long or does not print"
            raise _refused("tags", why, f"Use at most {LONGEST_TAG} printable characters.")
    return words


def _refused(thing: str, why: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"{why}.", thing=thing, remedy=remedy)
