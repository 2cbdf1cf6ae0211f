"""Knobs of NCCL as environment variables, options of a process group and a tuner's file."""

from typing import Any

import pytest

from autosync.documents import from_data, from_json, to_data, to_json
from autosync.errors import InvalidStrategy
from autosync.nccl_knobs import (
    MOST_CTAS,
    NcclKnobs,
    NcclRange,
    environment_of,
    group_configuration,
    missing_variables,
    tuner_configuration,
)

SWITCHED = NcclKnobs(
    ranges=(
        NcclRange("all_reduce", "Ring", "Simple", least_bytes=1 << 20),
        NcclRange("all_reduce", "NVLSTree", "Simple", least_bytes=65_536, channels=8),
        NcclRange("all_reduce", "Tree", "LL"),
        NcclRange("all_gather", "Ring", "LL128"),
    ),
)
FIXED = NcclKnobs(
    ranges=(NcclRange("all_reduce", "Tree", "LL128"), NcclRange("broadcast", "Ring", "Simple")),
    min_ctas=2,
    max_ctas=8,
    cga_cluster_size=0,
    socket_threads=4,
    sockets_per_thread=2,
    pxn=False,
)


def test_choices_for_all_sizes_are_environment_variables() -> None:
    assert environment_of(FIXED) == {
        "NCCL_ALGO": "allreduce:tree;broadcast:ring",
        "NCCL_CGA_CLUSTER_SIZE": "0",
        "NCCL_MAX_CTAS": "8",
        "NCCL_MIN_CTAS": "2",
        "NCCL_NSOCKS_PERTHREAD": "2",
        "NCCL_PROTO": "allreduce:ll128;broadcast:simple",
        "NCCL_PXN_DISABLE": "1",
        "NCCL_SOCKET_NTHREADS": "4",
    }


def test_choices_by_size_are_a_file_of_the_tuner_plugin() -> None:
    assert environment_of(SWITCHED, "/etc/tuner.conf") == {
        "NCCL_TUNER_CONFIG_FILE": "/etc/tuner.conf",
        "NCCL_TUNER_PLUGIN": "libnccl-tuner-example.so",
    }
    assert tuner_configuration(SWITCHED).splitlines() == [
        "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks",
        "allreduce,0,65535,tree,ll,0,-1,-1",
        "allreduce,65536,1048575,nvls_tree,simple,8,-1,-1",
        f"allreduce,1048576,{2**62},ring,simple,0,-1,-1",
        f"allgather,0,{2**62},ring,ll128,0,-1,-1",
    ]
    assert tuner_configuration(NcclKnobs(max_ctas=4)) == ""


def test_a_limit_of_ctas_is_the_number_of_a_lines_channels() -> None:
    knobs = NcclKnobs((NcclRange("reduce", "Ring", "LL", least_bytes=8),), max_ctas=4)
    assert tuner_configuration(knobs).splitlines()[1] == f"reduce,8,{2**62},ring,ll,4,-1,-1"


def test_a_process_group_takes_what_its_configuration_has() -> None:
    assert group_configuration(FIXED) == {"min_ctas": 2, "max_ctas": 8, "cga_cluster_size": 0}
    assert group_configuration(SWITCHED) == {}


def test_a_least_number_of_ctas_has_a_greatest_in_a_communicator() -> None:
    """NCCL 2.28 answers 'Invalid config min/max channels attribute value' to the least alone."""
    knobs = NcclKnobs(min_ctas=16)
    assert group_configuration(knobs) == {"min_ctas": 16, "max_ctas": MOST_CTAS}
    assert environment_of(knobs) == {"NCCL_MIN_CTAS": "16"}


def test_one_of_threads_and_sockets_states_the_other() -> None:
    """What the job sets of the other would count beside it, and predictions take one."""
    assert environment_of(NcclKnobs(socket_threads=2)) == {
        "NCCL_NSOCKS_PERTHREAD": "1",
        "NCCL_SOCKET_NTHREADS": "2",
    }
    assert environment_of(NcclKnobs(sockets_per_thread=4)) == {
        "NCCL_NSOCKS_PERTHREAD": "4",
        "NCCL_SOCKET_NTHREADS": "1",
    }


def test_groups_of_the_runtime_need_no_variables_of_ctas() -> None:
    needed = environment_of(FIXED, own_groups=True)
    assert not any("CTAS" in name or "CGA" in name for name in needed)
    assert missing_variables(FIXED, needed, own_groups=True) == {}
    others = {"NCCL_MAX_CTAS": "16", "NCCL_PXN_DISABLE": "0"}
    assert missing_variables(FIXED, needed | others, own_groups=True) == {
        "NCCL_MAX_CTAS": "8",
        "NCCL_PXN_DISABLE": "1",
    }


def test_a_process_lacks_what_it_was_started_without() -> None:
    present = environment_of(FIXED) | {"NCCL_MAX_CTAS": "16"}
    assert missing_variables(FIXED, present) == {"NCCL_MAX_CTAS": "8"}
    elsewhere = environment_of(SWITCHED, "/home/me/mine.conf")
    assert missing_variables(SWITCHED, elsewhere) == {}
    assert "NCCL_TUNER_CONFIG_FILE" in missing_variables(SWITCHED, {})


@pytest.mark.parametrize("knobs", [SWITCHED, FIXED])
def test_knobs_keep_their_text(knobs: NcclKnobs) -> None:
    assert from_json(NcclKnobs, to_json(knobs)) == knobs
    assert "pxn" not in to_data(SWITCHED)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"min_ctas": 9, "max_ctas": 8}, "more than max_ctas"),
        ({"max_ctas": 65}, "max_ctas is 65"),
        ({"socket_threads": 16, "sockets_per_thread": 8}, "is 128"),
        ({"cga_cluster_size": 9}, "cga_cluster_size is 9"),
        (
            {"ranges": [{"operation": "reduce", "algorithm": "Ring", "protocol": "LL"}] * 2},
            "two ranges of reduce",
        ),
        (
            {
                "ranges": [
                    {
                        "operation": "reduce",
                        "algorithm": "Ring",
                        "protocol": "LL",
                        "channels": 99,
                    }
                ]
            },
            "channels is 99",
        ),
    ],
)
def test_knobs_that_nccl_refuses_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidStrategy, match=why):
        from_data(NcclKnobs, given)
