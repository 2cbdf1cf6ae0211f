"""`autosync export`: the bundle of a tuning, or its settings for another framework."""

from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.added_options import uses_service
from autosync.api.cli.completion import complete_strategy, complete_tuning
from autosync.api.cli.console import out, print_json, say
from autosync.api.cli.options import Json
from autosync.api.cli.output_files import write_text
from autosync.errors import InvalidInput, NotSupported
from autosync.exports.settings import SNIPPET_FILES, TITLES, FrameworkName

if TYPE_CHECKING:
    from autosync.api.cli.connection import Connection
    from autosync.exports.settings import FrameworkSettings

BUNDLE_FILE = Path("best.json")


def _refuse_file(tuning: str) -> str:
    """Raises InvalidInput where a file is named: no database has what a job wrote by itself."""
    if Path(tuning).suffix and Path(tuning).is_file():
        raise InvalidInput(
            f"{tuning!r} is a file, and export takes the id of a tuning.",
            thing="TUNING",
            value=tuning,
            remedy="`autosync.distribute` takes a bundle as it is, and `autosync explain` reads "
            "it. For settings of a framework, begin a tuning from it (`autosync tune MODEL CLUSTER "
            f"--from {tuning}`) and export that one.",
        )
    return tuning


@uses_service
def export(
    tuning: Annotated[
        str,
        typer.Argument(
            metavar="TUNING",
            help="Its id, or the beginning of it.",
            show_default=False,
            callback=_refuse_file,
            autocompletion=complete_tuning,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where the bundle goes, or the settings: JSON, or what the framework reads.",
            show_default=str(BUNDLE_FILE),
        ),
    ] = None,
    framework: Annotated[
        FrameworkName | None,
        typer.Option(
            "--for",
            help="Print settings of this framework in place of a bundle, or why it cannot run the "
            "strategy.",
            show_default=False,
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="One of the tuning's strategies: its id, as `autosync show` lists it, or the "
            "beginning of it.",
            show_default="its answer",
            autocompletion=complete_strategy,
        ),
    ] = None,
    swap_gb: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            help="Swap activations to host memory, so that a training step takes at most so much "
            "of a device; of a bundle alone.",
            show_default=False,
        ),
    ] = None,
    swap_state: Annotated[
        bool,
        typer.Option("--swap-state", help="Beside --swap-gb: swap optimizer state, too."),
    ] = False,
    trials: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where its trials go, for `--from` and `autosync.tune(since=...)`. Given alone, "
            "no bundle is written.",
            show_default=False,
        ),
    ] = None,
    *,
    at: "Connection",
    json: Json = False,
) -> None:
    """Write the bundle that a tuning found, or its settings for another framework.

    Settings come with what the framework does otherwise, or with the reason why there are none.

    Examples:

        autosync export 3f2a90c1 -o best.json
        autosync export 3f2a90c1 -o best.json --trials measured.json
        autosync export 3f2a90c1 --trials measured.json
        autosync export 3f2a90c1 -o best.json --swap-gb 15.5
        autosync export 3f2a90c1 -o best.json --swap-gb 15.5 --swap-state
        autosync export 3f2a90c1 --for ddp
        autosync export 3f2a90c1 --strategy 9b41d07e -o second.json
        autosync export 3f2a90c1 --for deepspeed -o deepspeed.json
        autosync export 3f2a90c1 --for megatron -o arguments.txt
        autosync export 3f2a90c1 --for nccl -o nccl_tuner.conf
    """
    from autosync.api.cli.tuning_lookup import find_strategy, find_tuning
    from autosync.api.cli.tuning_report import print_script_lines
    from autosync.documents import to_data, to_json

    if swap_gb is not None and framework is not None:
        raise NotSupported(
            f"no settings of {TITLES[framework]} swap activations.",
            thing="--swap-gb",
            value=swap_gb,
            remedy="Leave --for out: `autosync.distribute` swaps as a bundle says.",
        )
    if swap_state and swap_gb is None:
        raise InvalidInput(
            "--swap-state was given without a budget to swap within.",
            thing="--swap-state",
            value=True,
            remedy="Give --swap-gb as well.",
        )
    tunings, tuning_id = at.client.tunings, find_tuning(at.client, tuning).id
    if trials is not None:
        write_text(trials, to_json(tunings.measured(tuning_id)))
        asked = (output, framework, strategy, swap_gb)
        if not json and all(each is None for each in asked):
            say(f"[dim]trials written to {escape(str(trials))}[/]")
            return
    if strategy is not None:
        strategy = find_strategy(strategy, tunings.strategies(tuning_id).items)
    if framework is not None:
        found = tunings.settings(tuning_id, framework, strategy=strategy)
        if output is not None:
            write_text(output, settings_text(found))
        if json:
            print_json(to_data(found))
        else:
            _print_settings(found, output)
        return
    bundle = tunings.bundle_text(tuning_id, strategy=strategy)
    if swap_gb is not None:
        bundle = _with_swap(bundle, swap_gb, swap_state)
    path = output or BUNDLE_FILE
    write_text(path, bundle)
    if json:
        print_json(loads(bundle))
    else:
        print_script_lines(path, bundle)


def _with_swap(bundle: str, swap_gb: float, swap_state: bool) -> str:
    from autosync.bundle import read_bundle, with_extension
    from autosync.documents import LARGEST_COUNT, to_json
    from autosync.extensions.offload.document import Offload

    if not 1 <= swap_gb * 1e9 <= LARGEST_COUNT:
        raise InvalidInput(
            f"{swap_gb} GB of device memory hold no training step.",
            thing="--swap-gb",
            value=swap_gb,
            remedy="Give what a step may take of each device, in 10^9 bytes.",
        )
    offload = Offload(int(swap_gb * 1e9), swap_state)
    return to_json(with_extension(read_bundle(bundle), offload))


def settings_text(settings: "FrameworkSettings") -> str:
    """The settings alone, as a framework reads them; of NCCL, the file of its tuner plugin.

    Raises:
        NotSupported: NCCL needs no file.
    """
    from autosync.nccl_knobs import TUNER_FILE

    if settings.framework in SNIPPET_FILES:
        return settings.snippet
    if settings.framework == "nccl":
        if TUNER_FILE not in settings.settings:
            raise NotSupported(
                "the strategy's knobs of NCCL need no file: environment variables state them.",
                thing="--output",
                remedy="Leave -o out: the variables are printed.",
            )
        return str(settings.settings[TUNER_FILE])
    return dumps(settings.settings, indent=2, ensure_ascii=False) + "\n"


def _print_settings(found: "FrameworkSettings", output: Path | None) -> None:
    from autosync.nccl_knobs import TUNER_FILE_VARIABLE

    title = TITLES[found.framework]
    if found.framework == "nccl":
        out.print(f"What strategy {found.strategy_id[:8]} sets of NCCL, on every rank:")
        for said in found.deviations:
            out.print(f"- {escape(said)}")
    elif found.deviations:
        out.print(f"{title} runs strategy {found.strategy_id[:8]} with these differences:")
        for said in found.deviations:
            out.print(f"- {escape(said)}")
    else:
        out.print(f"{title} runs strategy {found.strategy_id[:8]}, message for message.")
    own_tuner_file = found.framework == "nccl" and output is not None
    for name, value in found.environment.items():
        own_file = own_tuner_file and name == TUNER_FILE_VARIABLE
        out.print(f"  {name}={escape(str(output) if own_file else value)}")
    if found.framework != "nccl" and TUNER_FILE_VARIABLE in found.environment:
        out.print(f"  `--for nccl -o FILE` writes the file that {TUNER_FILE_VARIABLE} names.")
    if output is not None:
        out.print(f"Settings: [bold]{escape(str(output))}[/]")
    out.print()
    out.print(escape(found.snippet), soft_wrap=True, highlight=False)
