"""`autosync tune --resume`: the tuning to go on with, if the command line says the same as it."""

from typing import TYPE_CHECKING

from autosync.api.cli.tuning_lookup import find_tuning
from autosync.api.engine.tuning_request import same_tuning
from autosync.api.spec import TuningSpec
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.api.client.rest_client import Client
    from autosync.api.views.tuning_schemas import Tuning
    from autosync.domain import Domain

OF_OTHER_KINDS = {"graph", "cluster", "space", "advanced"}
"""Fields of the specification that are no options with one value."""


def resumed_tuning(
    client: "Client", resume: str, domain: "Domain | None", spec: TuningSpec
) -> "Tuning":
    """The tuning to go on with.

    Raises:
        NotFound: no such tuning. InvalidInput: MODEL and CLUSTER are another domain, or an option
            says otherwise than the tuning was begun with.
    """
    tuning = find_tuning(client, resume)
    _refuse_other_options(tuning, spec)
    stored = None if domain is None else client.tunings.domain(tuning.id)
    if domain is not None and stored and not same_tuning(domain, stored, spec.compute):
        raise InvalidInput(
            f"tuning {tuning.id[:8]} is for another model, cluster, batch or profile.",
            thing="--resume",
            value=resume,
            remedy=f"Give the same MODEL, CLUSTER and options, or only --resume {tuning.id[:8]}.",
        )
    return tuning


def _refuse_other_options(tuning: "Tuning", spec: TuningSpec) -> None:
    """A tuning goes on as it was begun. What is the usual value counts as left out.

    Raises:
        InvalidInput: an option says otherwise.
    """
    usual = TuningSpec(graph="", cluster="")
    asked = {name: getattr(spec, name) for name in spec.model_fields_set - OF_OTHER_KINDS}
    asked = {name: value for name, value in asked.items() if value != getattr(usual, name)}
    asked |= {name: getattr(spec.advanced, name) for name in spec.advanced.model_fields_set}
    if "space" in spec.model_fields_set:
        asked["space"] = spec.space.only
    for name, value in asked.items():
        begun = tuning.settings[name] if name in tuning.settings else getattr(tuning, name)
        if value != begun:
            raise InvalidInput(
                f"{name} is {value}, and tuning {tuning.id[:8]} was begun with {begun}.",
                thing=name,
                value=value,
                remedy=f"Leave it out to go on, or begin another one with --from {tuning.id[:8]}.",
            )
