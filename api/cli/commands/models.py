"""`autosync models`: the bundled models."""

from autosync.api.cli.console import print_json, print_table
from autosync.api.cli.options import Json


def models(json: Json = False) -> None:
    """List the bundled models.

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
                }
                for spec in specs
            ]
        )
        return
    rows = [
        (spec.name, spec.title, str(spec.batch_size), f"{spec.parameters / 1e6:.1f} M")
        for spec in specs
    ]
    print_table(("name", "model", "batch", "parameters"), rows, right=("batch", "parameters"))
