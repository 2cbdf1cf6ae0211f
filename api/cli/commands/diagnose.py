"""`autosync diagnose`: where the seconds of distributed iterations go, and what is attainable."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from autosync.api.cli.console import CONTROLS, say
from autosync.api.cli.options import Autocast, Output
from autosync.api.cli.output_files import check_writable, write_text
from autosync.optimizers import FOR_OTHERS, OptimizerName
from autosync.units import milliseconds

if TYPE_CHECKING:
    from torch import nn

    from autosync.diagnosis.report import Diagnosis

RANK_VARIABLE = "RANK"
"""torchrun sets it for every process that it starts."""

NO_HOSTS = (
    "The traces do not name their hosts, as of older versions of torch: the clock of each rank is "
    "set by the ends of collectives."
)
SOME_RANKS = (
    "The traces are those of {given} of {ranks} ranks: time in which one of them waits for another "
    "rank counts as communication."
)
HOST_AHEAD = (
    "GPUs went on for {behind} after the last marked iteration: the host runs ahead of them, and "
    "its marks may be shorter than iterations. Call torch.cuda.synchronize() before prof.step()."
)
AHEAD_SHARE = 0.25
"""The page says so where GPUs went on for more than this share of an iteration."""


def diagnose(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="train.py:FUNCTION or package.module:FUNCTION, which returns (module, example "
            "inputs, loss). Runs on the ranks that torchrun has started.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            help="A trace of torch.profiler (.json, .json.gz), one a rank; in place of MODEL.",
        ),
    ] = None,
    wrap: Annotated[
        Literal["ddp", "fsdp2"] | None,
        typer.Option(help="How MODEL is distributed.", show_default="ddp"),
    ] = None,
    optimizer: Annotated[
        OptimizerName | None, typer.Option(help="Of MODEL.", show_default=FOR_OTHERS)
    ] = None,
    autocast: Autocast = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=2, help="Timed without the profiler, and as many with it.", show_default="10"
        ),
    ] = None,
    predict: Annotated[
        bool | None,
        typer.Option(help="Also predict the limit and the best strategy.", show_default="predict"),
    ] = None,
    output: Output = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say where the iterations of a data-parallel job spend their time, and what could be gained.

    Names the slowest rank, what each message waited for, and common mistakes with their mend. The
    file of -o is a page where its name ends in .html, else JSON or text by its name. In a training
    script, `autosync.diagnose(step, model, optimizer)` does the same with the job as it is.

    Examples:

        torchrun --nproc-per-node 4 -m autosync diagnose train.py:example
        autosync diagnose --trace rank0.json --trace rank1.json -o page.html
    """
    from autosync.errors import InvalidInput

    if (model is None) == (not trace):
        raise InvalidInput(
            "diagnose takes MODEL or --trace, one of the two.",
            thing="MODEL",
            value=model,
            remedy="Give train.py:FUNCTION under torchrun, or one --trace for each rank.",
        )
    if trace:
        from autosync.api.engine.request_checks import refuse_given

        of_model: dict[str, object] = {"--wrap": wrap, "--optimizer": optimizer}
        of_model |= {"--autocast": autocast, "--iterations": iterations}
        of_model |= {"--no-predict" if predict is False else "--predict": predict}
        refuse_given(
            of_model,
            "beside --trace, since no job runs",
            "Leave it out, or give MODEL under torchrun in place of --trace.",
        )
    if output is not None and (trace or os.environ.get(RANK_VARIABLE, "0") == "0"):
        check_writable(output)  # by the first rank alone, on whose host it is written
    if trace:
        found = _of_traces(trace)
    else:
        assert model is not None
        live = _of_ranks(
            model,
            wrap or "ddp",
            optimizer or FOR_OTHERS,
            iterations or 10,
            predict is not False,
            autocast,
        )
        if live is None:
            return
        found = live
    # before the file, which may fail
    typer.echo(found.to_json() if json else found.to_text().translate(CONTROLS))
    if output is not None:
        write_text(output, _written(found, output.suffix))
        say(f"wrote {escape(str(output))}")


def _written(found: "Diagnosis", suffix: str) -> str:
    match suffix:
        case ".html":
            return found.to_html()
        case ".json":
            return found.to_json()
    return found.to_text()


def _of_traces(files: list[Path]) -> "Diagnosis":
    from autosync.api.cli.domain_arguments import read_bytes
    from autosync.diagnosis.breakdown import break_down
    from autosync.diagnosis.mistakes import find_mistakes
    from autosync.diagnosis.rank_trace import rank_trace
    from autosync.diagnosis.report import Diagnosis
    from autosync.interop.trace_profile import MAX_TRACE_BYTES, load_trace

    traces = []
    for file in files:
        data = read_bytes(file, "trace", MAX_TRACE_BYTES)
        traces.append(rank_trace(load_trace(data, file.name), file.name))
    breakdown = break_down(traces)
    named = all(each.host for each in traces)
    ranks = max(each.world_size for each in traces)
    behind = max(each.seconds_behind for each in traces)
    is_ahead = behind > AHEAD_SHARE * breakdown.iteration_seconds
    return Diagnosis(
        len({each.host for each in traces}) if named else 0,
        "",
        "cuda" if breakdown.on_device else "cpu",
        None,
        breakdown,
        find_mistakes(breakdown, ()),
        notes=(
            "Of traces alone nothing is predicted: the limit is what is left where all "
            "communication is hidden.",
            *(() if named else (NO_HOSTS,)),
            *((HOST_AHEAD.format(behind=milliseconds(behind)),) if is_ahead else ()),
            *((SOME_RANKS.format(given=len(traces), ranks=ranks),) if len(traces) < ranks else ()),
        ),
    )


def _of_ranks(
    target: str,
    wrap: str,
    optimizer: OptimizerName,
    iterations: int,
    predict: bool,
    autocast: str | None,
) -> "Diagnosis | None":
    """None on ranks but the first."""
    from autosync.errors import InvalidInput

    if RANK_VARIABLE not in os.environ:
        raise InvalidInput(
            "this process is no rank of a job.",
            thing=RANK_VARIABLE,
            value=None,
            remedy=f"Start it with torchrun --nproc-per-node 2 -m autosync diagnose {target}.",
        )
    import torch
    import torch.distributed as dist

    from autosync.api.cli.model_arguments import autocast_type
    from autosync.importing.model_target import load_target
    from autosync.importing.recording_devices import under_autocast
    from autosync.importing.several_examples import each_example
    from autosync.importing.training_step import loss_of, map_tensors, module_arguments
    from autosync.search.live.diagnosis import diagnose as diagnose_job
    from autosync.trials.worker.training_job import make_optimizer

    made = load_target(target, allocate=True)
    lower = autocast_type(autocast)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else None
    if device is not None:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        inner = made.module.to(device)
        inputs = map_tensors(next(iter(each_example(made.example_inputs))), lambda t: t.to(device))
        arguments, keywords = module_arguments(inner, inputs, made.loss)

        def backward(model: "nn.Module") -> None:
            with under_autocast(lower, "cuda" if on_gpu else "cpu"):
                loss = loss_of(model(*arguments, **keywords), inputs, made.loss)
            loss.backward()

        model: nn.Module
        if wrap == "ddp":
            _check_step(target, lambda: backward(inner))
            left_out = any(p.requires_grad and p.grad is None for p in inner.parameters())
            unused = torch.tensor(float(left_out), device=device)
            dist.all_reduce(unused, dist.ReduceOp.MAX)  # ranks must give DDP the same
            inner.zero_grad()
            model = torch.nn.parallel.DistributedDataParallel(
                inner, find_unused_parameters=bool(unused)
            )
        else:
            model = _sharded(inner)

        def step(model: "nn.Module", optimizer: torch.optim.Optimizer) -> None:
            backward(model)
            optimizer.step()
            optimizer.zero_grad()

        chosen = make_optimizer(optimizer, model)
        _check_step(target, lambda: step(model, chosen))
        found = diagnose_job(
            step, model, chosen, iterations=iterations, predict=predict, on_progress=say
        )
        return found if dist.get_rank() == 0 else None
    finally:
        dist.destroy_process_group()


def _sharded(model: "nn.Module") -> "nn.Module":
    """Each block a unit of its own, as one would wrap by hand."""
    from torch.distributed.fsdp import fully_shard

    from autosync.torch_engine import usual_units

    for unit in usual_units([name for name, _ in model.named_parameters()]):
        fully_shard(model.get_submodule(unit))
    fully_shard(model)
    return model


def _check_step(target: str, run: Callable[[], None]) -> None:
    """Raises InvalidInput where the user's module or loss fails; names the place."""
    from autosync.errors import InvalidInput
    from autosync.importing.refusals import at, first_line

    try:
        run()
    except Exception as error:  # the user's own code may raise anything
        raise InvalidInput(
            f"{target!r}: a training step fails{at(error)}: {first_line(error)}.",
            thing="model",
            value=type(error).__name__,
            remedy="The loss function is called with (outputs, *example_inputs).",
        ) from None
