"""Knobs of NCCL in training and in trials: on process groups, and in the environment."""

import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch._C._distributed_c10d import HashStore

import autosync
from autosync.bundle import Bundle, with_extension
from autosync.nccl_knobs import (
    TUNER_PLUGIN,
    NcclKnobs,
    NcclRange,
    environment_of,
    tuner_configuration,
)
from autosync.runtime.device.streams import HOST
from autosync.runtime.transport import nccl, process_groups
from autosync.runtime.transport.nccl import knobs_without_effect, nccl_options
from autosync.runtime.transport.process_groups import Groups
from autosync.strategy import Schedule
from autosync.trials import session
from tests.autosync.runtime.cases import Case, make_model, make_optimizer
from tests.autosync.runtime.distributing import bundle_of, refusal
from tests.autosync.runtime.ranks import Ranks

KNOBS = NcclKnobs(max_ctas=4, pxn=False)
EVERYONE = (0, 1)


def shipped(case: Case) -> Bundle:
    return with_extension(bundle_of(case, make_model(case.model), 2), KNOBS)


OWN = shipped(Case(method="ps"))
DDP = shipped(Case(schedule=Schedule("ddp"), groups=1))


def test_plans_with_other_knobs_have_other_communicators(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, dict[str, int]] = {}

    def new(store: Any, place: int, timeout: timedelta, device: Any, *given: Any) -> object:
        identity, knobs = given
        plain = SimpleNamespace(config=SimpleNamespace(min_ctas=-1, max_ctas=-1))
        made[identity.name] = vars(nccl_options(plain, timeout, identity, knobs).config)
        return object()

    monkeypatch.setattr(process_groups, "new_nccl_group", new)
    monkeypatch.setattr(process_groups, "GlooGroup", lambda *given: object())
    groups = Groups(HashStore(), 0, timedelta(seconds=40), "nccl", ranks=(4, 6))
    found = [
        groups.on(HOST, knobs).get("all", EVERYONE)
        for knobs in (None, KNOBS, replace(KNOBS, pxn=None), NcclKnobs(pxn=False))
    ]
    plain, few = found[:2]
    assert found == [plain, few, few, plain]
    assert plain is not few
    control = groups.get("control", EVERYONE, "gloo")
    assert groups.on(HOST, KNOBS).get("control", EVERYONE, "gloo") is control
    assert list(made.values()) == [  # by name, which the store tells them apart by
        {"min_ctas": -1, "max_ctas": -1},
        {"min_ctas": -1, "max_ctas": 4},
    ]


@pytest.mark.parametrize(
    ("bundle", "present", "missing"),
    [
        (OWN, {"NCCL_PXN_DISABLE": "1"}, ()),
        (OWN, {}, ("NCCL_PXN_DISABLE is 'not set'",)),
        (OWN, {"NCCL_PXN_DISABLE": "1", "NCCL_MAX_CTAS": "8"}, ("NCCL_MAX_CTAS is '8'",)),
        (DDP, environment_of(KNOBS), ()),
        (DDP, {}, ("NCCL_MAX_CTAS is 'not set'", "NCCL_PXN_DISABLE is 'not set'")),
    ],
)
def test_what_is_not_in_force_is_named_with_the_way_out(
    bundle: Bundle,
    present: dict[str, str],
    missing: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's own engine uses process groups that are there already."""
    monkeypatch.setattr(nccl, "backend_on", lambda group, device: "nccl")
    group: Any = None
    why = knobs_without_effect(bundle.plan, group, torch.device("cuda", 0), present)
    assert (why is not None) == bool(missing)
    for words in missing:
        assert words in str(why)
        assert f"{words.partition(' ')[0]}={environment_of(KNOBS)[words.partition(' ')[0]]}" in str(
            why
        )


def told(rank: int, world: int) -> tuple[list[str], str, str]:
    """What a rank is warned of where it trains over gloo, and how a trial is refused there, and
    training where the ranks have other variables."""
    os.environ["AUTOSYNC_HOST"] = f"host{rank}"
    model = make_model("mlp")
    optimizer = make_optimizer("sgd", model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, optimizer = autosync.distribute(model, optimizer, OWN)
    autosync.detach(model)
    groups = session.ReusedGroups()
    of_trial = refusal(lambda: session.attach(model, optimizer, OWN, 1.0, groups))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_PXN_DISABLE", str(rank))
        of_ranks = refusal(lambda: autosync.distribute(model, optimizer, OWN))
    return [str(warning.message) for warning in caught], of_trial, of_ranks


def test_a_job_is_warned_once_and_a_trial_refused(pair: Ranks) -> None:
    first, second = pair.run(told)
    (warning,) = first[0]
    assert "knobs of NCCL, and messages travel by gloo" in warning
    assert "may be slower than measured" in warning
    assert second[0] == []
    for _, of_trial, of_ranks in (first, second):
        assert "messages travel by gloo" in of_trial
        assert "NCCL_PXN_DISABLE is '0' on rank 0, '1' on rank 1" in of_ranks


BY_SIZE = NcclKnobs((NcclRange("all_reduce", "Ring", "LL", least_bytes=8),))


def refusals_of_ranges(rank: int, world: int, folder: Path) -> list[str]:
    """Where all is well; then rank 1 has other ranges, no file, and no plugin."""
    own = folder / f"{rank}.conf"
    own.write_text(f"# by hand\n{tuner_configuration(BY_SIZE)}")
    others = folder / "others.conf"
    others.write_text(tuner_configuration(BY_SIZE).replace(",8,", ",64,"))
    plan = with_extension(OWN, BY_SIZE).plan
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl, "backend_on", lambda group, device: "nccl")
        for theirs, loaded in ((own, True), (others, True), (folder / "none", True), (own, False)):
            patch.setattr(nccl, "is_loaded", lambda name, loaded=loaded: loaded or rank == 0)
            file = own if rank == 0 else theirs
            present = environment_of(BY_SIZE, str(file))
            group: Any = torch.distributed.group.WORLD
            found.append(str(knobs_without_effect(plan, group, torch.device("cpu"), present)))
    return found


def test_ranges_by_size_are_refused_on_every_rank_where_one_lacks_them(
    pair: Ranks, tmp_path: Path
) -> None:
    first, second = pair.run(refusals_of_ranges, tmp_path)
    for fine, other, missing, unloaded in (first, second):
        assert fine == "None"
        assert "NCCL_TUNER_CONFIG_FILE names states other ranges" in other
        assert "NCCL_TUNER_CONFIG_FILE names cannot be read" in missing
        assert "has not loaded libnccl-tuner-example.so" in unloaded
        assert "LD_LIBRARY_PATH" in unloaded


def test_a_library_counts_once_something_has_loaded_it(tmp_path: Path) -> None:
    """Any library will do; NCCL opens its plugin by this name."""
    shutil.copy(numpy.random.bit_generator.__file__, tmp_path / TUNER_PLUGIN)
    script = (
        "import ctypes; from autosync.runtime.transport.nccl import is_loaded\n"
        f"before = is_loaded({TUNER_PLUGIN!r}); ctypes.CDLL({TUNER_PLUGIN!r})\n"
        f"print(before, is_loaded({TUNER_PLUGIN!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False True\n"
