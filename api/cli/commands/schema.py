"""`autosync schema`: the JSON Schema of a document."""

from typing import Annotated

import typer

from autosync.api.cli.console import print_json

NAMES = (
    "Bundle",
    "Cluster",
    "CollectivesSpec",
    "CompareSpec",
    "Domain",
    "FrameworkSettings",
    "MeasuredTimeline",
    "ModelGraph",
    "Plan",
    "PredictSpec",
    "Profile",
    "RankSpec",
    "ScaleSpec",
    "Settings",
    "Space",
    "Strategy",
    "TrialResult",
    "TuningSpec",
)
"""Of `autosync.api.http.openapi.DOCUMENTS`, which takes longer to load."""


def schema(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"One of {', '.join(NAMES)}.", show_default=False)
    ],
) -> None:
    """Print the JSON Schema of a document.

    Example: `autosync schema Strategy > strategy.schema.json`
    """
    from autosync.api.cli.domain_arguments import unknown_name
    from autosync.api.http.openapi import schema_of

    spelled = {known.lower(): known for known in NAMES}
    if name.lower() not in spelled:
        raise unknown_name("document", name, list(NAMES), "")
    print_json(schema_of(spelled[name.lower()]))
