"""What `autosync tune` is asked for on its way into the database: begun, or gone on with."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from autosync.api.cli.console import say
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.api.db.database import Database
    from autosync.api.engine.tuning_request import TuningRequest
    from autosync.api.spec import TuningSpec
    from autosync.domain import Domain
    from autosync.search.loop.earlier_trials import EarlierTrials


def beginning_from(database: "Database", given: str, request: "TuningRequest") -> "TuningRequest":
    """The request with what is known from `given`, a file or the beginning of a tuning's id.

    Raises:
        InvalidInput: a file that is neither a bundle nor trials; or nothing in it runs here.
        NotFound: neither a file nor a tuning.
    """
    from autosync.search.loop.earlier_trials import known_from, read_earlier, usable

    if Path(given).is_file():
        known = known_from(read_earlier(given), request.domain)
    else:
        known = measured_trials(database, given)
    return replace(request, earlier=usable(known, request.domain, request.space))


def measured_trials(database: "Database", prefix: str) -> "EarlierTrials":
    """Of the tuning whose id begins so, as far as it has come. Raises as `find_tuning`."""
    from autosync.api.cli.tuning_lookup import find_tuning
    from autosync.api.engine.database_store import DatabaseStore
    from autosync.search.loop.earlier_trials import trials_of
    from autosync.search.loop.outcome import rank_measured

    tuning = find_tuning(database, prefix)
    store = DatabaseStore(database, tuning.id, tuning.fence)
    return trials_of(rank_measured(store.proposals(), store.trials()))


def requested(domain: "Domain", spec: "TuningSpec") -> "TuningRequest":
    """What is asked of this domain, at the scales that are asked for or that this kind of machine
    can carry.

    Raises:
        InvalidInput: fields do not go together. NotSupported: this machine has no GPU.
    """
    from autosync.api.engine.tuning_request import TuningRequest, at_scales
    from autosync.trials.request_names import REAL_CLUSTERS

    asked = TuningRequest(
        domain=domain,
        settings=spec.settings,
        space=spec.space,
        simulator=spec.simulator,
        launcher=spec.launcher,
        compute=spec.compute,
        device=spec.compute_device,
    )
    request = at_scales(asked, spec.byte_scale, spec.time_scale)
    if request.workload.device == "cuda" and spec.launcher not in REAL_CLUSTERS:
        from autosync.trials.gpus import refuse_without_gpu

        refuse_without_gpu()
    return request


def started_tuning(database: "Database", request: "TuningRequest | None", db: str) -> str:
    """Put a new tuning into the database and say what it is."""
    from autosync.api.cli.domain_summary import describe_domain
    from autosync.api.cli.tuning_report import scale_words, warn_unshaped
    from autosync.api.db.database import masked
    from autosync.api.engine.registry import launcher_named
    from autosync.api.engine.submission import enqueue

    assert request is not None  # without --resume, MODEL and CLUSTER were required
    describe_domain(request.domain)
    scales = scale_words(request.byte_scale, request.time_scale)
    say(f"{scales}, budget {request.settings.budget} strategies")
    if words := request.workload.compute_words:
        say(f"Trials compute: {words}; what they take is measured first")
    if launcher_named(request.launcher).name == "local":
        warn_unshaped()
    tuning_id = enqueue(database, request)
    say(f"[dim]Tuning {tuning_id[:8]} in {escape(masked(db))}[/]")
    return tuning_id


def resumed_tuning(database: "Database", resume: str, request: "TuningRequest | None") -> str:
    """The tuning to go on with.

    Raises:
        NotFound: no such tuning. InvalidInput: MODEL and CLUSTER are another domain.
    """
    from autosync.api.cli.tuning_lookup import find_tuning, free_from_dead_worker
    from autosync.api.db.document_store import load_domain
    from autosync.api.engine.tuning_queue import reopen
    from autosync.api.engine.tuning_request import same_tuning

    tuning = find_tuning(database, resume)
    with database.reading() as session:
        stored = load_domain(session, tuning.domain_id)
    if request is not None and not same_tuning(request.domain, stored, request.compute):
        raise InvalidInput(
            f"tuning {tuning.id[:8]} is for another model, cluster, batch or profile.",
            thing="--resume",
            value=resume,
            remedy=f"Give the same MODEL, CLUSTER and options, or only --resume {tuning.id[:8]}.",
        )
    if not free_from_dead_worker(database, tuning):
        say(f"[dim]Worker {tuning.worker} has it: following, or going on once it is gone[/]")
    reopen(database, tuning.id)
    return tuning.id
