"""Arguments and options that several commands share."""

import os
import shlex
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import typer

from autosync.api.cli.completion import complete_cluster, complete_device, complete_model
from autosync.api.prediction_spec import PlacedJobSpec
from autosync.api.spec import TuningSpec
from autosync.compute_settings import Precision
from autosync.environment import (
    DATABASE_URL_VARIABLE,
    PREFIX_VARIABLE,
    PYTHON_VARIABLE,
    RAY_ADDRESS_VARIABLE,
    SHARE_GPUS_VARIABLE,
)
from autosync.optimizers import OptimizerName
from autosync.profiling import EFFICIENCY
from autosync.search.space import SPACES_IN_WORDS, SpaceName
from autosync.trials import request_names


def number_or_fraction(text: str) -> float:
    """0.03125, or 1/32 as reports print it."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{text!r} is no number such as 0.5 or 1/2.") from None


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A bundled name (see `autosync models`), a graph JSON, timm:NAME, torchvision:NAME, a "
        "Hugging Face config.json, an .onnx file, or package.module:function returning (module, "
        "example inputs, loss).",
        show_default=False,
        autocompletion=complete_model,
    ),
]
ClusterName = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER",
        help="A bundled name (see `autosync clusters`) or a YAML file.",
        show_default=False,
        autocompletion=complete_cluster,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        min=1,
        help="Examples per replica; a graph JSON and package.module:function bring their own.",
        show_default="the model's usual one",
    ),
]
Autocast = Annotated[
    Literal["bfloat16", "float16"] | None,
    typer.Option("--autocast", help="Run the forward pass under torch.autocast to this type."),
]
Optimizer = Annotated[
    OptimizerName | None,
    typer.Option(
        help="What the model is trained with: its state takes memory.",
        show_default="adamw of a model with attention, else sgd_momentum",
    ),
]
DeviceType = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Estimate for this device type.",
        show_default="the cluster's fastest",
        autocompletion=complete_device,
    ),
]
Efficiency = Annotated[
    float | None,
    typer.Option(
        help="Share of the device's peak that an estimate assumes.",
        show_default=f"{EFFICIENCY:g}",
    ),
]
StepSeconds = Annotated[
    float | None,
    typer.Option(
        "--step-seconds",
        help=PlacedJobSpec.model_fields["step_seconds"].description,
    ),
]
PrecisionName = Annotated[
    Precision,
    typer.Option(
        "--precision",
        help=PlacedJobSpec.model_fields["precision"].description,
    ),
]
Recompute = Annotated[
    bool,
    typer.Option(
        "--recompute",
        help=PlacedJobSpec.model_fields["recompute"].description,
    ),
]
Accumulate = Annotated[
    int, typer.Option(min=1, help=PlacedJobSpec.model_fields["accumulate"].description)
]
ProfileFile = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        help="A profile written by `autosync profile -o`; several, at other batch sizes: a "
        "regression over them.",
        metavar="FILE",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write to this file.", metavar="FILE"),
]
RequiredOutput = Annotated[
    Path,
    typer.Option("-o", "--output", help="Write to this file.", metavar="FILE", show_default=False),
]
KeepDays = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Workers remove tunings that ended more than so many days ago, with their trials and "
        "events, and older versions of the simulator.",
        show_default="keep all",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--db",
        envvar=DATABASE_URL_VARIABLE,
        help="sqlite:///FILE or postgresql://USER@HOST/NAME.",
    ),
]
ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="ADDRESS",
        help="Ask the service there instead of a database; its key is read from AUTOSYNC_TOKEN.",
        show_default=False,
    ),
]
SimulatorName = Annotated[
    str,
    typer.Option(
        "--simulator", metavar="NAME", help=f"{TuningSpec.model_fields['simulator'].description}"
    ),
]
SpaceOption = Annotated[
    SpaceName | None,
    typer.Option(
        "--space",
        help="Which strategies stand beside DDP: "
        + "; ".join(f"{name} is {words}" for name, words in SPACES_IN_WORDS.items())
        + ".",
        show_default="all of AutoSync's",
    ),
]
BackendName = Annotated[
    request_names.BackendName | None,
    typer.Option(
        "--backend",
        help="Backend that carries messages, for which plans are made and predicted. Costs that "
        "CLUSTER states for another backend are dropped.",
        show_default="what CLUSTER says",
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        envvar=PREFIX_VARIABLE,
        help="How launcher command reaches a host: 'ssh {host}', 'srun -w {host} -N1 -n1 "
        "--overlap --cpu-bind=none', 'kubectl exec -i {host} --'.",
        show_default=False,
    ),
]
WorkerPython = Annotated[
    str | None,
    typer.Option(
        "--python",
        envvar=PYTHON_VARIABLE,
        help="Interpreter on the hosts of launcher command.",
        show_default="this one's path",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        envvar=RAY_ADDRESS_VARIABLE,
        help="Head of the Ray cluster of launcher ray, HOST:PORT (RAY_AUTH_MODE=token).",
        show_default=False,
    ),
]


ShareGpus = Annotated[
    bool,
    typer.Option(
        "--share-gpus",
        envvar=SHARE_GPUS_VARIABLE,
        help="Ranks of trials may share a GPU: for a cluster with more GPUs than the machine that "
        "measures. Kernels of all ranks then compete for it, and results say so.",
    ),
]


def set_up_launchers(
    prefix: str | None = None,
    python: str | None = None,
    ray_address: str | None = None,
    share_gpus: bool = False,
) -> None:
    """Where the registry looks, in this process and in the workers that it starts."""
    given = {
        PREFIX_VARIABLE: prefix,
        PYTHON_VARIABLE: python,
        RAY_ADDRESS_VARIABLE: ray_address,
        SHARE_GPUS_VARIABLE: "1" if share_gpus else None,
    }
    os.environ.update({name: value for name, value in given.items() if value is not None})


DEFAULT_DATABASE = "sqlite:///autosync.db"


def database_option(db: str) -> str:
    """`--db URL` for a further command, with a space before it and without a password; empty where
    that command finds the database by the environment or as the default."""
    if db == (os.environ.get(DATABASE_URL_VARIABLE) or DEFAULT_DATABASE):
        return ""
    from autosync.api.db.database import masked

    return f" --db {shlex.quote(masked(db))}"
