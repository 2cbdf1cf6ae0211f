"""`autosync models`: the bundled models."""

from autosync.api.cli.console import print_json, print_table
from autosync.api.cli.options import Json


def models(json: Json = False) -> None:
    """List the bundled models by family, with where each is published.

    Your own model needs no registration: `autosync rank my.package:function CLUSTER`.
    """
    from autosync.models import BUNDLED

    specs = list(BUNDLED.values())
    if json:
        print_json(
            [
                {
                    "name": spec.name,
                    "title": spec.title,
                    "batch_size": spec.batch_size,
                    "parameters": spec.parameters,
                    "family": spec.family,
                    "source": spec.source,
                }
                for spec in specs
            ]
        )
        return
    rows = [
        (
            *(spec.family, spec.name, spec.title, str(spec.batch_size)),
            *(f"{spec.parameters / 1e6:.1f} M", spec.source),
        )
        for spec in specs
    ]
    columns = ("family", "name", "model", "batch", "parameters", "published")
    print_table(columns, rows, right=("batch", "parameters"))
