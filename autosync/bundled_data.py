"""The bundled data: autosync/datasets, a folder when installed and a link in a clone."""

from pathlib import Path

from autosync.errors import NotFound


def data_folder(name: str) -> Path:
    """The folder datasets/<name>.

    Raises:
        NotFound: names the folder that is missing.
    """
    folder = Path(__file__).parent / "datasets" / name
    if not folder.is_dir():
        raise NotFound(
            f"the bundled data folder {str(folder)!r} is missing.",
            thing="datasets",
            value=str(folder),
            remedy="Install the project whole, or run from a complete clone.",
        )
    return folder


def data_file(folder_name: str, name: str) -> Path:
    """The file datasets/<folder_name>/<name>.

    Raises:
        NotFound: no such file; lists those there are.
    """
    folder = data_folder(folder_name)
    path = folder / name
    if path.parent != folder or not path.is_file():
        known = sorted(other.stem for other in folder.glob(f"*{path.suffix}"))
        raise NotFound(
            f"there is no {name!r} among the bundled {folder_name}.",
            thing=folder_name,
            value=name,
            remedy=f"There are: {', '.join(known) or 'none'}.",
        )
    return path
