"""Lists of hosts: the hostfile of mpirun, Horovod or DeepSpeed, and what Slurm states for a job."""

import re
from dataclasses import dataclass
from functools import partial

from autosync.cluster.cluster_file import MAX_BYTES, MAX_DEVICES
from autosync.interop import refused_file

_refused = partial(refused_file, remedy="`autosync import-cluster --help` shows what can be read.")


MAX_HOSTS = 4096
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:%-]{0,252}")
"""No name begins as an option does: launchers pass it to ssh and srun."""

USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}")

BRACKETED = re.compile(r"\[([0-9A-Fa-f]*:[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?)\](?::(.*))?")
"""An IPv6 address, and slots behind it."""

NOT_READ = frozenset(
    (
        *("port", "user", "username", "user_name", "user-name"),
        *("max_slots", "max-slots", "ifhn", "binding", "map"),
    )
)
"""Keys of a host's line that say how to log in, or what MPI's launcher alone uses."""

SLURM_PART = re.compile(r"\[([^\][]*)\]|([^\][,]+)")
COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


@dataclass(frozen=True, slots=True)
class Host:
    """slots: replicas that it holds; None where the list does not say. device_type, port_gbps (of
    a port on the wire) and on_gpus (whether its replicas run on GPUs): likewise."""

    address: str
    slots: int | None = None
    device_type: str | None = None
    port_gbps: float | None = None
    on_gpus: bool | None = None
    server_only: bool = False


def read_hostfile(text: str, source: str) -> tuple[tuple[Host, ...], tuple[str, ...]]:
    """The hosts of `host slots=4` (Open MPI, DeepSpeed) or `host:4` (MPICH, Horovod), in order,
    and what of the file is left out of them, a sentence each.

    What follows # is a comment. A host in several lines has a slot for each, as mpirun counts. An
    IPv6 address with slots stands in brackets. How to log in (`user@host`, `port=`) and what the
    launcher alone uses (`ifhn=`, `binding=`) is left out.

    Raises:
        InvalidInput: names the line.
    """
    if len(text.encode()) > MAX_BYTES:
        raise _refused(source, f"is larger than {MAX_BYTES // 1000} kB")
    found: dict[str, int | None] = {}
    bare: set[str] = set()
    left_out: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = "=".join(map(str.strip, line.partition("#")[0].split("="))).split()
        if not words:
            continue
        where = f"{source}, line {number}"
        address, slots = _host_and_slots(words, where, left_out)
        if address in found:
            if slots is not None or address not in bare:
                raise _refused(where, f"host {address!r} has its slots stated twice")
            found[address] = (found[address] or 1) + 1
            continue
        found[address] = slots
        if slots is None:
            bare.add(address)
        if len(found) > MAX_HOSTS:
            raise _refused(where, f"more than {MAX_HOSTS} hosts")
    if not found:
        raise _refused(
            source, "names no host", remedy="Write one a line: `host slots=4` or `host:4`."
        )
    notes = (f"{source}: {key} is left out (of use to the launcher alone)" for key in left_out)
    return tuple(Host(address, slots) for address, slots in found.items()), tuple(notes)


def _host_and_slots(
    words: list[str], where: str, left_out: dict[str, None]
) -> tuple[str, int | None]:
    """left_out: filled with what is not read."""
    user, at, host = words[0].rpartition("@")
    if at:
        if not USER_NAME.fullmatch(user):
            raise _refused(where, f"{_short(user)} is no user's name")
        left_out["the user in user@host"] = None
    address, slots = host, None
    if bracketed := BRACKETED.fullmatch(host):
        address, count = bracketed.groups()
        slots = None if count is None else _slots(count, where)
    elif host.count(":") == 1:  # more of them are an IPv6 address
        address, _, count = host.partition(":")
        slots = _slots(count, where)
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if equals and value and key in NOT_READ:
            left_out[f"{key}="] = None
            continue
        if key != "slots" or slots is not None:
            raise _refused(
                where,
                f"cannot read {_short(word)}",
                remedy="Write `host slots=4` or `host:4`; an IPv6 address stands in brackets.",
            )
        slots = _slots(value, where)
    return _checked_name(address, where), slots


def _slots(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7 and 0 < int(text) <= MAX_DEVICES):
        raise _refused(where, f"slots must be a whole number from 1 to {MAX_DEVICES}, got {text!r}")
    return int(text)


def expand_nodelist(nodelist: str, source: str = "SLURM_JOB_NODELIST") -> tuple[str, ...]:
    """The hosts of `gpu[01-04,07],login`, in Slurm's order (`scontrol show hostnames`).

    A name may hold several brackets, of which the last runs fastest; numbers keep their zeros.

    Raises:
        InvalidInput: not closed, empty, descending, or too many.
    """
    if len(nodelist) > MAX_BYTES:
        raise _refused(source, f"is longer than {MAX_BYTES // 1000} kB")
    hosts: list[str] = []
    for entry in _entries(nodelist.strip(), source):
        names = [""]
        place = 0
        for part in SLURM_PART.finditer(entry):
            if part.start() != place:
                break
            place = part.end()
            inside, plain = part.groups()
            values = [plain] if inside is None else _numbers(inside, entry, source)
            if len(names) * len(values) > MAX_HOSTS:
                raise _refused(source, f"{_short(entry)} stands for more than {MAX_HOSTS} hosts")
            names = [name + value for name in names for value in values]
            _checked_name(names[0], source)  # before it grows on
        if not entry or place != len(entry):
            raise _refused(source, f"cannot read {_short(entry)}")
        hosts += [_checked_name(name, source) for name in names]
        if len(hosts) > MAX_HOSTS:
            raise _refused(source, f"it stands for more than {MAX_HOSTS} hosts")
    if len(set(hosts)) < len(hosts):
        twice = next(host for host in hosts if hosts.count(host) > 1)
        raise _refused(source, f"host {twice!r} stands in it twice")
    return tuple(hosts)


def expand_counts(counts: str, source: str = "SLURM_TASKS_PER_NODE") -> tuple[int, ...]:
    """The tasks of each host: `4(x2),3` is 4, 4, 3.

    Raises:
        InvalidInput: cannot be read, or too many.
    """
    found: list[int] = []
    for entry in counts.strip()[:MAX_BYTES].split(","):
        match = COUNT.fullmatch(entry)
        if match is None:
            raise _refused(source, f"cannot read {_short(entry)}", remedy="Slurm writes 4(x2),3.")
        times = int(match[2] or 1)
        if times > MAX_HOSTS or len(found) + times > MAX_HOSTS:
            raise _refused(source, f"it counts more than {MAX_HOSTS} hosts")
        found += [_slots(match[1], source)] * times
    return tuple(found)


def _entries(nodelist: str, source: str) -> list[str]:
    """Split at the commas outside of brackets."""
    entries, depth, begin = [], 0, 0
    for place, character in enumerate(nodelist):
        depth += (character == "[") - (character == "]")
        if not 0 <= depth <= 1:
            raise _refused(source, f"its brackets do not match at character {place + 1}")
        if character == "," and depth == 0:
            entries.append(nodelist[begin:place])
            begin = place + 1
            if len(entries) > MAX_HOSTS:
                raise _refused(source, f"it has more than {MAX_HOSTS} entries")
    if depth:
        raise _refused(source, "a bracket is not closed")
    return [*entries, nodelist[begin:]]


def _numbers(inside: str, entry: str, source: str) -> list[str]:
    """`01-03,7` as 01, 02, 03, 7."""
    found: list[str] = []
    for item in inside.split(","):
        low, dash, high = item.partition("-")
        last = high if dash else low
        sound = all(n.isascii() and n.isdigit() and len(n) < 10 for n in (low, last))
        if not sound or int(last) < int(low):
            raise _refused(source, f"cannot read [{_short(inside)}] in {_short(entry)}")
        if int(last) - int(low) + len(found) >= MAX_HOSTS:
            raise _refused(source, f"{_short(entry)} stands for more than {MAX_HOSTS} hosts")
        found += [f"{number:0{len(low)}d}" for number in range(int(low), int(last) + 1)]
    return found


def _checked_name(name: str, where: str) -> str:
    if not HOST_NAME.fullmatch(name):
        raise _refused(where, f"{_short(name)} is no host's name")
    return name


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
