"""`autosync tune`: find, measure and confirm the fastest strategy."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from autosync.api.cli.completion import complete_cluster, complete_model, complete_tuning
from autosync.api.cli.console import print_json, warn
from autosync.api.cli.options import (
    DEFAULT_DATABASE,
    BackendName,
    Batch,
    DatabaseUrl,
    DeviceType,
    Efficiency,
    Json,
    Optimizer,
    Prefix,
    ProfileFile,
    RayAddress,
    ShareGpus,
    StepSeconds,
    WorkerPython,
    set_up_launchers,
)
from autosync.api.cli.output_files import check_writable, write_text
from autosync.api.cli.spec_options import Advanced, advanced_from, spec_options
from autosync.api.spec import TuningSpec, checked
from autosync.errors import AutosyncError, InvalidInput

if TYPE_CHECKING:
    from autosync.api.db.database import Database
    from autosync.api.engine.tuning_request import TuningRequest

ASKED = (
    "budget",
    "launcher",
    "byte_scale",
    "time_scale",
    "compute",
    "compute_device",
    "proposals",
    "repeats",
    "iterations",
    "warmup",
    "seed",
    "probe",
    "simulator",
)
"""Fields of the specification that are options."""


@spec_options(TuningSpec, ASKED)
def tune(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A bundled name, a graph JSON, or package.module:function.",
            show_default=False,
            autocompletion=complete_model,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Argument(
            metavar="CLUSTER",
            help="A bundled name or a YAML file.",
            show_default=False,
            autocompletion=complete_cluster,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the bundle goes.")
    ] = Path("best.json"),
    backend: BackendName = None,
    share_gpus: ShareGpus = False,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Go on with this tuning; nothing is measured twice.",
            autocompletion=complete_tuning,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TUNING",
            help="Begin from what another tuning measured: its id, its bundle, or its trials.",
            autocompletion=complete_tuning,
        ),
    ] = None,
    advanced: Advanced = None,
    top: Annotated[int, typer.Option(min=1, help="Strategies listed at the end.")] = 12,
    batch: Batch = None,
    optimizer: Optimizer = None,
    device: DeviceType = None,
    efficiency: Efficiency = None,
    step_seconds: StepSeconds = None,
    profile: ProfileFile = None,
    prefix: Prefix = None,
    python: WorkerPython = None,
    ray_address: RayAddress = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: Json = False,
    **asked: Any,
) -> None:
    """Find the fastest strategy for a model on a cluster by measuring, and write its bundle.

    Tries hand-designed strategies and the most promising of many sampled ones, then runs the
    best three against torch's DDP in interleaved repeats. "Keep DDP" is an answer. Everything
    is stored as it happens: after Ctrl-C or a crash the same command with --resume goes on.

    Examples:

        autosync tune resnet50 example-4x1 --budget 16 -o best.json
        autosync tune train:example my-cluster.yaml --step-seconds 0.21
        autosync tune resnet50 my-cluster.yaml --launcher command --prefix "ssh {host}"
        autosync tune resnet50 pair.yaml --launcher local --compute kernels --compute-device cuda
        autosync tune resnet50 four.yaml --compute kernels --compute-device cuda --share-gpus
        autosync tune --resume 3f2a90c1
        autosync tune resnet50 my-cluster.yaml --from best.json -o better.json
    """
    from autosync.api.cli.arguments.domain_arguments import ProfileChoice, load_domain
    from autosync.api.cli.open_database import opened
    from autosync.api.cli.tuning_start import (
        beginning_from,
        requested,
        resumed_tuning,
        started_tuning,
    )
    from autosync.api.engine.request_checks import refuse_unused

    check_writable(output)
    set_up_launchers(prefix, python, ray_address, share_gpus)
    spec = checked(
        TuningSpec, {"graph": "", "cluster": "", **asked, "advanced": advanced_from(advanced)}
    )
    request: TuningRequest | None = None
    if model is not None and cluster is not None:
        estimate = {"--step-seconds": step_seconds, "--efficiency": efficiency}
        refuse_unused(spec.compute, {"--profile": profile or None, **estimate})
        choice = ProfileChoice(profile, device, efficiency, step_seconds)
        domain = load_domain(model, cluster, batch, choice, optimizer)
        if backend is not None:
            domain = replace(domain, cluster=domain.cluster.on_backend(backend))
        request = requested(domain, spec)
    elif resume is None:
        raise InvalidInput(
            "MODEL and CLUSTER are missing.",
            thing="arguments",
            remedy="Example: `autosync tune resnet50 example-4x1`; see `autosync tune --help`.",
        )
    if since is not None and resume is not None:
        raise InvalidInput(
            "--from begins another tuning, --resume goes on with one.",
            thing="--from",
            value=since,
            remedy="Give one of them.",
        )
    with opened(db, create=resume is None) as database:
        if since is not None and request is not None:
            request = beginning_from(database, since, request)
        tuning_id = (
            resumed_tuning(database, resume, request)
            if resume
            else started_tuning(database, request, db)
        )
        _run(database, tuning_id, resumed=resume is not None, db=db)
        _report(database, tuning_id, output, top, json)


def _run(database: "Database", tuning_id: str, resumed: bool, db: str) -> None:
    from autosync.api.cli.console import log_to_file
    from autosync.api.cli.in_process_tuning import run_here
    from autosync.api.cli.progress import compilation_lines
    from autosync.api.cli.stop_signals import leave_when_overdue, stopped_by_signals
    from autosync.api.db.database import masked
    from autosync.api.db.tables import FINAL

    log = log_to_file("tune")
    with compilation_lines(), stopped_by_signals() as stop:
        leave_when_overdue(stop)
        tuning = run_here(database, tuning_id, resumed, stop)
    if stop.is_set() and tuning.state not in FINAL:
        where = "" if db == DEFAULT_DATABASE else f" --db {escape(masked(db))}"
        warn(f"stopped. Nothing is lost; go on with: autosync tune --resume {tuning_id[:8]}{where}")
        raise typer.Exit(stop.exit_code)
    if tuning.state == "failed":
        raise AutosyncError(
            f"tuning {tuning_id[:8]} failed: {tuning.error}",
            thing="tuning",
            value=tuning_id,
            remedy=f"Details: {log}. --resume {tuning_id[:8]} keeps what was measured.",
        )


def _report(database: "Database", tuning_id: str, output: Path, top: int, json: bool) -> None:
    """The table, and the bundle whole or not at all."""
    from autosync.api.cli.tuning_lookup import bundle_text
    from autosync.api.cli.tuning_report import print_results, print_two_lines, results_data
    from autosync.api.views import reports

    text = bundle_text(database, tuning_id)
    with database.reading() as session:
        tuning = reports.tuning(session, tuning_id)
        ranked = reports.ranked_strategies(session, tuning_id)
    measured_on = ", ".join(tuning.ran_on)
    if json:
        print_json(results_data(tuning, ranked, measured_on))
    else:
        print_results(tuning, ranked, measured_on, top)
    try:
        write_text(output, text)
    except InvalidInput as error:  # the answer is stored, and shown above
        error.remedy = f"Write it elsewhere: autosync export {tuning_id[:8]} -o FILE"
        raise
    if not json:
        print_two_lines(output)
