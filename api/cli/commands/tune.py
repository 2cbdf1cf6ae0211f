"""`autosync tune`: find, measure and confirm the fastest strategy."""

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from autosync.api.cli.added_options import Advanced, advanced_from, spec_options
from autosync.api.cli.commands.export import BUNDLE_FILE
from autosync.api.cli.completion import complete_cluster, complete_model, complete_tuning
from autosync.api.cli.console import print_json, say, warn
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
    ServiceUrl,
    ShareGpus,
    SpaceOption,
    StepSeconds,
    WorkerPython,
    database_option,
    set_up_launchers,
)
from autosync.api.cli.output_files import check_writable, write_text
from autosync.api.spec import TuningSpec, checked
from autosync.environment import (
    PREFIX_VARIABLE,
    PYTHON_VARIABLE,
    RAY_ADDRESS_VARIABLE,
    SHARE_GPUS_VARIABLE,
)
from autosync.errors import AutosyncError, InvalidInput

if TYPE_CHECKING:
    from autosync.api.cli.connection import Connection
    from autosync.api.client.rest_client import Client
    from autosync.api.views.tuning_schemas import Tuning
    from autosync.domain import Domain
    from autosync.search.loop.earlier_document import EarlierTrials

ASKED = (
    "budget",
    "launcher",
    "byte_scale",
    "time_scale",
    "compute",
    "compute_device",
    "accumulate",
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
            help="A bundled name, a graph JSON, timm:NAME, torchvision:NAME, a Hugging Face "
            "config.json, an .onnx file, or package.module:function.",
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
    ] = BUNDLE_FILE,
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
    space: SpaceOption = None,
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
    url: ServiceUrl = None,
    json: Json = False,
    **asked: Any,
) -> None:
    """Find the fastest strategy for a model on a cluster by measuring, and write its bundle.

    Tries hand-designed strategies and the most promising of many sampled ones, then runs the
    best three against torch's DDP in interleaved repeats. "Keep DDP" is an answer. Everything
    is stored as it happens: after Ctrl-C or a crash the same command with --resume goes on. With
    --url the workers of a service run it, and this command shows how it goes.

    Examples:

        autosync tune resnet50 example-4x1 --budget 16 -o best.json
        autosync tune train:example my-cluster.yaml --step-seconds 0.21
        autosync tune resnet50 my-cluster.yaml --launcher command --prefix "ssh {host}"
        autosync tune resnet50 pair.yaml --launcher local --compute kernels --compute-device cuda
        autosync tune resnet50 four.yaml --compute kernels --compute-device cuda --share-gpus
        autosync tune resnet50 example-4x1 --space buckets
        autosync tune --resume 3f2a90c1
        autosync tune resnet50 example-4x1 --url http://tuner.example.com:8080
        autosync tune resnet50 my-cluster.yaml --from best.json -o better.json
        autosync tune gpt2_medium my-cluster.yaml --space fsdp2
    """
    from autosync.api.cli.connection import connected
    from autosync.api.cli.domain_arguments import ProfileChoice, load_domain
    from autosync.api.cli.resumed_tuning import resumed_tuning
    from autosync.api.engine.request_checks import refuse_given, refuse_unused
    from autosync.compute_settings import ComputeSettings

    check_writable(output)
    typed = _typed_launcher_options(prefix, python, ray_address, share_gpus)
    if url is not None:
        _refuse_launcher_options(typed)
    set_up_launchers(prefix, python, ray_address, share_gpus)
    given = {**asked, **({"space": space} if space else {}), "advanced": advanced_from(advanced)}
    spec = checked(TuningSpec, {"graph": "", "cluster": "", **given})
    domain: Domain | None = None
    estimate = {"--step-seconds": step_seconds, "--efficiency": efficiency}
    if model is not None and cluster is not None:
        assumed: dict[str, object] = {"--profile": profile or None, "--device": device, **estimate}
        refuse_unused(spec.compute, assumed)
        settings = ComputeSettings(step_seconds=step_seconds, efficiency=efficiency)
        choice = ProfileChoice(profile, device, settings)
        domain = load_domain(model, cluster, batch, choice, optimizer)
        domain = replace(domain, accumulate=spec.accumulate)
        if backend is not None:
            domain = replace(domain, cluster=domain.cluster.on_backend(backend))
        if url is None:
            _check_here(domain, spec)
    elif resume is None:
        raise InvalidInput(
            "MODEL and CLUSTER are missing.",
            thing="arguments",
            remedy="Example: `autosync tune resnet50 example-4x1`; see `autosync tune --help`.",
        )
    else:
        of_domain: dict[str, object] = {"MODEL": model, "CLUSTER": cluster, "--batch": batch}
        of_domain |= {"--device": device, "--optimizer": optimizer, "--backend": backend}
        refuse_given(
            {**of_domain, "--profile": profile or None, **estimate},
            "beside --resume without both MODEL and CLUSTER",
            f"Give only --resume {resume}, or the whole command that began the tuning.",
        )
    if since is not None and resume is not None:
        raise InvalidInput(
            "--from begins another tuning, --resume goes on with one.",
            thing="--from",
            value=since,
            remedy="Give one of them.",
        )
    place = url or _masked(db)
    with connected(db, url, create=resume is None) as at:
        if resume is not None:
            tuning = resumed_tuning(at.client, resume, domain, spec)
        else:
            assert domain is not None  # MODEL and CLUSTER were required
            tuning = _started(at.client, domain, spec, since, place)
        where = f" --url {url}" if url else database_option(db)
        run_tuning(at, tuning, resume is not None, where + given_again(output, typed))
        report(at.client, tuning.id, output, top, json, memory=url is None)


def _masked(db: str) -> str:
    """Without its secrets. A client of a service needs no SQLAlchemy."""
    from autosync.api.db.database import masked

    return masked(db)


def _typed_launcher_options(
    prefix: str | None, python: str | None, ray_address: str | None, share_gpus: bool
) -> dict[str, str | bool]:
    """Options for this machine's workers that were typed, with their values; those that have an
    environment variable set are left out."""
    given: dict[str, tuple[str | bool | None, str]] = {
        "--prefix": (prefix, PREFIX_VARIABLE),
        "--python": (python, PYTHON_VARIABLE),
        "--ray-address": (ray_address, RAY_ADDRESS_VARIABLE),
        "--share-gpus": (share_gpus, SHARE_GPUS_VARIABLE),
    }
    return {
        option: value
        for option, (value, variable) in given.items()
        if value and variable not in os.environ
    }


def _refuse_launcher_options(typed: dict[str, str | bool]) -> None:
    """Raises InvalidInput where one was typed. Environment variables are not used with --url."""
    for option, value in typed.items():
        raise InvalidInput(
            f"{option} is for the workers of this machine; with --url those of the service run "
            "the trials.",
            thing=option,
            value=value,
            remedy=f"Start the service or its workers with {option}, or leave --url out.",
        )


def given_again(output: Path, typed: dict[str, str | bool]) -> str:
    """What --resume needs once more, as it is typed: no database knows it."""
    words = [] if output == BUNDLE_FILE else ["-o", str(output)]
    for option, value in typed.items():
        words += [option] if value is True else [option, str(value)]
    return "".join(f" {shlex.quote(word)}" for word in words)


def _check_here(domain: "Domain", spec: TuningSpec) -> None:
    """Before anything is made.

    Raises:
        InvalidInput: fields do not go together. NotSupported: nothing says how the launcher
            reaches its hosts, or trials are to compute on GPUs of this machine, and it has none.
    """
    from autosync.api.engine.registry import check_launcher
    from autosync.api.engine.tuning_request import TuningRequest, at_scales
    from autosync.trials.request_names import REAL_CLUSTERS

    check_launcher(spec.launcher)
    asked = TuningRequest(
        domain, launcher=spec.launcher, compute=spec.compute, device=spec.compute_device
    )
    workload = at_scales(asked, spec.byte_scale, spec.time_scale).workload
    if workload.device == "cuda" and spec.launcher not in REAL_CLUSTERS:
        from autosync.trials.gpus import refuse_without_gpu

        refuse_without_gpu()


def _started(
    client: "Client", domain: "Domain", spec: TuningSpec, since: str | None, place: str
) -> "Tuning":
    """Queue a new tuning, and say what it is."""
    from autosync.api.cli.domain_arguments import describe_domain
    from autosync.api.cli.tuning_report import scale_words, warn_gloo, warn_unshaped

    describe_domain(domain)
    if spec.compute_device == "cpu" and domain.cluster.backend == "nccl":
        warn_gloo()
    options = spec.model_dump(exclude={"graph", "cluster", "earlier", "space"}, exclude_unset=True)
    options |= {"optimizer": domain.optimizer}
    if "space" in spec.model_fields_set:
        options["space"] = spec.space
    if spec.compute == "waited":  # of kernels it is measured
        options["profile"] = domain.profile
    if since is not None:
        options["earlier"] = _earlier(client, since, domain)
    tuning = client.tunings.start(domain.graph, domain.cluster, **options)
    scales = scale_words(tuning.byte_scale, tuning.time_scale)
    say(f"{scales}, budget {spec.budget} strategies")
    if spec.compute == "kernels":
        say(f"Trials compute kernels on {spec.compute_device}; what they take is measured first")
    by_nccl = spec.compute_device == "cuda" and domain.cluster.backend == "nccl"
    if tuning.launcher == "local" and not (by_nccl and len(domain.cluster.nodes) == 1):
        warn_unshaped()
    say(f"[dim]Tuning {tuning.id[:8]} in {escape(place)}[/]")
    return tuning


def _earlier(client: "Client", given: str, domain: "Domain") -> "EarlierTrials":
    """What is known from a file, or from the tuning whose id begins so.

    Raises:
        InvalidInput: a file that is neither a bundle nor trials. NotFound: neither a file nor a
            tuning.
    """
    from autosync.api.cli.tuning_lookup import find_tuning
    from autosync.search.loop.earlier_trials import known_from, read_earlier

    if Path(given).is_file():
        return known_from(read_earlier(given), domain)
    return client.tunings.measured(find_tuning(client, given).id)


def run_tuning(at: "Connection", tuning: "Tuning", resumed: bool, where: str) -> None:
    """Run it here, or follow the service that does. where: the options that name it,
    and what --resume needs besides."""
    from autosync.api.cli.connection import embedded_worker, free_from_dead_worker
    from autosync.api.cli.console import log_to_file
    from autosync.api.cli.progress import compilation_lines, show_progress
    from autosync.api.cli.stop_signals import leave_when_overdue, stopped_by_signals
    from autosync.api.cli.tuning_lookup import ENDED

    log = log_to_file("tune")
    with compilation_lines(), stopped_by_signals() as stop:
        leave_when_overdue(stop)
        seen = 0
        if resumed:
            if worker := free_from_dead_worker(at, tuning.id):
                words = "has it: following, or going on once it is gone"
                say(f"[dim]Worker {escape(worker)} {words}[/]")
            for event in at.client.tunings.events(tuning.id, follow=False):
                seen = event.id  # an earlier run has printed it
            if tuning.state != "finished":
                at.client.tunings.resume(tuning.id)
        with embedded_worker(at, tuning.id, stop):
            tuning = show_progress(at.client, tuning, stop, seen)
    if stop.is_set() and tuning.state not in ENDED:
        again = f"autosync tune --resume {tuning.id[:8]}{escape(where)}"
        goes_on = "Nothing is lost" if at.database else "The service goes on with it"
        warn(f"stopped. {goes_on}; follow it or go on with: {again}")
        raise typer.Exit(stop.exit_code)
    if tuning.state == "failed":
        raise AutosyncError(
            f"tuning {tuning.id[:8]} failed: {tuning.error}",
            thing="tuning",
            value=tuning.id,
            remedy=f"Details: {log}. --resume {tuning.id[:8]} keeps what was measured.",
        )


def report(
    client: "Client", tuning_id: str, output: Path, top: int, json: bool, memory: bool = False
) -> None:
    """The table, and the bundle whole or not at all. memory: predict it here, where the kernels
    for that are compiled."""
    from autosync.api.cli.tuning_report import (
        curve_of,
        predicted_peaks,
        print_results,
        print_script_lines,
        results_data,
    )

    text = client.tunings.bundle_text(tuning_id)
    tuning, ranked = client.tunings.get(tuning_id), client.tunings.strategies(tuning_id)
    measured_on, curve = ", ".join(tuning.ran_on), curve_of(client, tuning)
    peaks = predicted_peaks(client, tuning_id) if memory else None
    if json:
        print_json(results_data(tuning, ranked, measured_on, peaks, curve))
    else:
        print_results(tuning, ranked, measured_on, top, peaks, curve)
    try:
        write_text(output, text)
    except InvalidInput as error:  # the answer is stored, and shown above
        error.remedy = f"Write it elsewhere: autosync export {tuning_id[:8]} -o FILE"
        raise
    if not json:
        print_script_lines(output, text)
