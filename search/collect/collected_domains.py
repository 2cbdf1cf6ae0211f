"""The domains that a collection stores in FOLDER/targets: probed once, measured on many days.

NAME.json is the target's domain with its probed costs. Measured anew it is probed anew, which makes
it another domain; until its passes are complete, the old domain is set aside as NAME.json.replaced.
"""

from pathlib import Path

from autosync.atomic_write import replaced_atomically
from autosync.documents import from_json, to_json
from autosync.domain import Domain

_REPLACED = "json.replaced"


def stored_domain(folder: Path, name: str) -> Domain | None:
    """The target's domain, where it has been probed."""
    return _read(_file(folder, name))


def store_domain(folder: Path, name: str, domain: Domain) -> None:
    file = _file(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced_atomically(file) as draft:
        draft.write_text(to_json(domain) + "\n")


def mark_replaced(folder: Path, name: str) -> None:
    """Set the target's domain aside; nothing where one is aside already, or none was probed."""
    if _file(folder, name).exists() and not _aside(folder, name).exists():
        _file(folder, name).rename(_aside(folder, name))


def replaced_domain(folder: Path, name: str) -> Domain | None:
    """The domain set aside."""
    return _read(_aside(folder, name))


def remove_replaced(folder: Path, name: str) -> None:
    """Remove the domain set aside, which no trial names any more."""
    if old := replaced_domain(folder, name):
        (folder / "domains" / f"{old.id}.json").unlink(missing_ok=True)
        _aside(folder, name).unlink()


def stored_domains(folder: Path) -> list[Domain]:
    """Every target's domain that has been probed; those set aside, too."""
    files = [file for end in ("json", _REPLACED) for file in (folder / "targets").glob(f"*.{end}")]
    return [domain for file in sorted(files) if (domain := _read(file))]


def _file(folder: Path, name: str) -> Path:
    return folder / "targets" / f"{name}.json"


def _aside(folder: Path, name: str) -> Path:
    return folder / "targets" / f"{name}.{_REPLACED}"


def _read(file: Path) -> Domain | None:
    if not file.is_file():
        return None
    return from_json(Domain, file.read_text(), source=str(file))
