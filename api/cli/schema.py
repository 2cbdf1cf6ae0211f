"""`autosync schema`: the JSON Schema of a document."""

from typing import Annotated

import typer

from api.cli.console import print_json

NAMES = ("ModelGraph", "Cluster", "Profile", "Domain", "Strategy", "Plan", "Bundle", "TrialResult")


def schema(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"One of {', '.join(NAMES)}.", show_default=False)
    ],
) -> None:
    """Print the JSON Schema of a document.

    Example: `autosync schema Strategy > strategy.schema.json`
    """
    from api.cli.inputs import unknown_name
    from autosync.documents import json_schema

    spelled = {known.lower(): known for known in NAMES}
    if name.lower() not in spelled:
        raise unknown_name("document", name, list(NAMES), "")
    print_json(json_schema(document_class(spelled[name.lower()])))


def document_class(name: str) -> type[object]:
    """The class of a document's name."""
    from autosync.bundle import Bundle
    from autosync.cluster import Cluster
    from autosync.domain import Domain, Profile
    from autosync.graph import ModelGraph
    from autosync.plan import Plan
    from autosync.strategy import Strategy
    from autosync.trials.contract import TrialResult

    known = (ModelGraph, Cluster, Profile, Domain, Strategy, Plan, Bundle, TrialResult)
    return dict(zip(NAMES, known, strict=True))[name]
