"""The form that starts a tuning, filled in as another tuning was asked for."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from autosync.api.db.tables import DomainRow, TuningRow
from autosync.api.spec import AdvancedSpec
from autosync.api.views import reports
from autosync.api.views.tuning_schemas import Tuning
from autosync.bundled_data import data_file
from autosync.cluster.cluster_file import bundled_clusters, load_cluster
from autosync.documents import from_json
from autosync.domain import Optimizer, optimizer_named
from autosync.errors import AutosyncError
from autosync.models import bundled, is_bundled
from autosync.optimizers import OPTIMIZERS
from autosync.search.space import SPACES, Space

IN_FORM = ("budget", "repeats", "seed")
BESIDE_FORM = ("proposals", "iterations", "warmup", "probe")
"""Settings that the form has fields for, and others of `TuningSpec`."""


@dataclass(frozen=True, slots=True)
class FormOfTuning:
    """fields: texts by name, as the form shows them. others: what the form has no field for, as
    `TuningSpec` takes it."""

    fields: dict[str, str]
    others: dict[str, Any]


def form_of_tuning(session: Session, tuning_id: str) -> FormOfTuning:
    """Raises NotFound."""
    tuning = reports.tuning(session, tuning_id)
    row = session.get_one(TuningRow, tuning_id)
    domain = session.get_one(DomainRow, row.domain_id)
    optimizer = from_json(Optimizer, domain.optimizer)
    named = next((name for name in OPTIMIZERS if optimizer_named(name) == optimizer), "")
    space = from_json(Space, row.space)
    named_space = next((name for name, each in SPACES.items() if each == space), "")
    others: dict[str, Any] = {
        "advanced": {name: tuning.settings[name] for name in AdvancedSpec.model_fields},
        "compute": tuning.compute,
        "compute_device": tuning.compute_device,
        **{name: tuning.settings[name] for name in BESIDE_FORM},
    }
    if not named_space and space != Space():
        others["space"] = json.loads(row.space)
    if not named:
        others["optimizer"] = json.loads(domain.optimizer)
    if tuning.compute != "kernels":  # which are measured
        others["profile"] = json.loads(domain.profile)
    if row.earlier is not None:
        others["earlier"] = json.loads(row.earlier)
    fields = {
        **_model(tuning),
        "cluster": _cluster(tuning),
        "optimizer": named,
        "accumulate": str(tuning.accumulate),
        "space": named_space,
        "launcher": tuning.launcher,
        "simulator": tuning.simulator,
        "byte_scale": repr(tuning.byte_scale).removesuffix(".0"),
        "time_scale": repr(tuning.time_scale).removesuffix(".0"),
        **{name: str(tuning.settings[name]) for name in IN_FORM},
    }
    return FormOfTuning(fields, others)


def asked_like(session: Session, tuning_id: str, given: dict[str, Any]) -> dict[str, Any]:
    """What a form that `form_of_tuning` filled in asks for. The profile is taken over where model
    and cluster are, which it is of; earlier trials where batches per update and the space are, too.
    given: fields that are not empty. Raises NotFound."""
    like = form_of_tuning(session, tuning_id)

    def same(*names: str) -> bool:
        return all(given.get(name, "") == like.fields[name] for name in names)

    of_domain = same("graph", "batch_size", "cluster")
    kept = {"profile": of_domain, "earlier": of_domain and same("accumulate", "space")}
    others = {name: value for name, value in like.others.items() if kept.get(name, True)}
    return others | given


def _model(tuning: Tuning) -> dict[str, str]:
    """A bundled model by its name, where the tuning's graph is one."""
    if is_bundled(tuning.graph):
        with suppress(AutosyncError):  # an uploaded model of the same name, at another batch size
            if bundled(tuning.graph, tuning.batch_size).id == tuning.graph_id:
                return {"graph": tuning.graph, "batch_size": str(tuning.batch_size)}
    return {"graph": tuning.graph_id, "batch_size": ""}


def _cluster(tuning: Tuning) -> str:
    if tuning.cluster in bundled_clusters():
        file = data_file("clusters", f"{tuning.cluster}.yaml")
        if load_cluster(file).id == tuning.cluster_id:
            return tuning.cluster
    return tuning.cluster_id
