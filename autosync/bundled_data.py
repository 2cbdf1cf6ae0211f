"""Where the bundled data (datasets/) lies: in the package, by a link in a clone."""

from pathlib import Path

from autosync.errors import NotFound


def data_folder(kind: str) -> Path:
    """The folder datasets/<kind>.

    Raises:
        NotFound: names the folder that is missing.
    """
    folder = Path(__file__).parent / "datasets" / kind
    if not folder.is_dir():
        raise NotFound(
            f"the bundled data folder {str(folder)!r} is missing.",
            thing="datasets",
            value=str(folder),
            remedy="Install the project whole, or run from a complete clone.",
        )
    return folder


def data_file(kind: str, name: str) -> Path:
    """The file datasets/<kind>/<name>.

    Raises:
        NotFound: no such file; lists those there are.
    """
    folder = data_folder(kind)
    path = folder / name
    if path.parent != folder or not path.is_file():
        known = sorted(other.stem for other in folder.glob(f"*{path.suffix}"))
        raise NotFound(
            f"there is no {name!r} among the bundled {kind}.",
            thing=kind,
            value=name,
            remedy=f"There are: {', '.join(known) or 'none'}.",
        )
    return path
