"""Cluster files: YAML in, a checked Cluster out, and back."""

import re
from dataclasses import fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from autosync.atomic_write import replaced_atomically
from autosync.bundled_data import data_file, data_folder
from autosync.cluster.cluster_checks import OPTIONAL_NUMBERS
from autosync.cluster.cluster_document import Cluster, Device, Node
from autosync.cluster.devices import DEVICE_TYPES
from autosync.cluster.link_rates import gpu_payload_gbps, nic_payload_gbps
from autosync.documents import from_data, to_data
from autosync.errors import InvalidInput

if TYPE_CHECKING or not yaml.__with_libyaml__:
    from yaml import SafeLoader as _SafeLoader
else:  # libyaml's parser, six times as fast; PyYAML's wheels bring it
    from yaml import CSafeLoader as _SafeLoader

MAX_BYTES = 1_000_000
MAX_DEPTH = 16
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
PARSERS_OWN = "maximum nesting depth"
"""Of what the parser says that refuses to read on; it may look further ahead than its events."""
MAX_DIGITS = 64
"""Characters of a number: YAML 1.1 reads 1:30:00 as a count in base 60, which takes time in the
square of its length."""
MAX_DEVICES = 1024
MAX_NUMBER = 1e6
EXPONENT = re.compile(r"[-+]?[0-9]{1,40}(\.[0-9]{1,40})?[eE][-+]?[0-9]{1,4}")
"""A number that YAML 1.1 reads as text, since it lacks a point or a sign: 1e-05, as in JSON."""
LONGEST_SHOWN = 80
"""Characters of a wrong value that a refusal repeats."""

NODE_FIELDS = tuple(each.name for each in fields(Node))
DEVICE_FIELDS = tuple(each.name for each in fields(Device))


@cache
def bundled_clusters() -> tuple[str, ...]:
    """Names of the preset clusters."""
    return tuple(sorted(path.stem for path in data_folder("clusters").glob("*.yaml")))


def load_cluster(path_or_name: str | Path) -> Cluster:
    """A preset by its name, or a file. What ends in .yaml or .yml, or exists, is a file.

    Raises:
        NotFound: no preset of that name, and no such file.
        InvalidInput: the file cannot be read or is no cluster; names the node at fault.
    """
    path = Path(path_or_name)
    if not (path.suffix in (".yaml", ".yml") or path.is_file()):
        path = data_file("clusters", f"{path_or_name}.yaml")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(
            f"cannot read the cluster file {str(path)!r}: {error.strerror}.",
            thing="cluster",
            value=str(path),
            remedy=f"Presets: {', '.join(bundled_clusters())}.",
        ) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused(str(path), f"is not UTF-8 text (byte {error.start})") from None
    return parse_cluster(text, str(path))


def parse_cluster(yaml_text: str, source: str, max_bytes: int = MAX_BYTES) -> Cluster:
    """A cluster from YAML (JSON is YAML too). Nothing in it is executed.

    Raises:
        InvalidInput: names `source`, and the node and field at fault.
    """
    data = strict_yaml(yaml_text, source, max_bytes)
    if not isinstance(data, dict):
        raise _refused(source, f"holds a {type(data).__name__}, not a mapping with `nodes`")
    _check_document(data, source)
    return from_data(Cluster, data, source)


def strict_yaml(yaml_text: str, source: str, max_bytes: int = MAX_BYTES) -> Any:
    """What untrusted YAML holds: plain data, of bounded size and depth, each key once.

    Aliases are refused, since a few of them can stand for gigabytes.

    Raises:
        InvalidInput: names `source` and the line at fault.
    """
    if len(yaml_text.encode()) > max_bytes:
        raise _refused(source, f"is larger than {max_bytes // 1000} kB")
    try:
        _check_events(yaml_text)
        return yaml.load(yaml_text, Loader=_StrictLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}" if mark else ""
        problem = TOO_DEEP if PARSERS_OWN in str(error.problem) else error.problem
        raise _refused(f"{source}{where}", f"is no valid YAML: {problem}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise _refused(source, f"is no valid YAML: {error}") from None
    except (LookupError, AttributeError):  # of PyYAML, where a tag is on what it cannot be
        raise _refused(source, "is no valid YAML: a tag is on a value of another kind") from None


def save_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write the cluster whole or not at all."""
    text = yaml.safe_dump(to_data(cluster), sort_keys=False, allow_unicode=True)
    with replaced_atomically(path) as draft:
        draft.write_text(text, encoding="utf-8")


def _check_events(yaml_text: str) -> None:
    """Refuses aliases and deep nesting while nothing is built yet."""
    depth = 0
    for event in yaml.parse(yaml_text, Loader=_SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _marked("aliases (*name) are not allowed: write the values out", event)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _marked(TOO_DEEP, event)


class _StrictLoader(_SafeLoader):
    """Safe YAML without repeated keys (one would silently win) or endless numbers."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen if isinstance(key, yaml.ScalarNode) else False:
                raise _marked(f"{key.value!r} is given twice", key)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        if len(node.value) > MAX_DIGITS:
            why = f"a number has {len(node.value)} characters, more than {MAX_DIGITS}"
            raise _marked(why, node)
        read = self.construct_yaml_int if node.tag == INT_TAG else self.construct_yaml_float
        return read(node)


INT_TAG, FLOAT_TAG = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
for _tag in (INT_TAG, FLOAT_TAG):
    _StrictLoader.add_constructor(_tag, _StrictLoader.construct_number)


def _marked(problem: str, where: Any) -> yaml.MarkedYAMLError:
    """where: an event or a node."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


def _check_document(data: dict[Any, Any], source: str) -> None:
    """Find by node what a schema would report by position."""
    _check_text(data, "name", source, "", "Begin with `name: my-cluster`.")
    nodes = data.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        raise _refused(source, "names no nodes", "List them under `nodes:`.")
    _check_numbers(data, (*OPTIONAL_NUMBERS, "oversubscription", "hosts_per_leaf"), source)
    version = data.get("nccl_version")
    if isinstance(version, int | float) and not isinstance(version, bool):
        why = f"nccl_version is the number {_shown(version)}, of which 2.20 and 2.2 are the same"
        raise _refused(source, why, "Write it in quotes: nccl_version: '2.20'.")
    _check_costs(data.get("costs"), source)
    if isinstance(day := data.get("priced_on"), date):  # as YAML reads one without quotes
        data["priced_on"] = day.isoformat()
    for position, node in enumerate(nodes, 1):
        if not isinstance(node, dict):
            raise _refused(source, f"node number {position} is a {type(node).__name__}")
        _check_text(node, "address", source, f"node number {position} ")
        where = f"{source}, node {node['address']!r}"
        _check_node(node, where)
        _fill_in_rates(node, str(data.get("transport", "")), where)


def _check_text(
    given: dict[Any, Any], field: str, source: str, whose: str, remedy: str = ""
) -> None:
    """Refuses what is missing, and what YAML reads as something else: 003, no."""
    value = given.get(field)
    if value is None or value == "":
        raise _refused(source, f"{whose}has no {field}", remedy)
    if not isinstance(value, str):
        why = f"{whose}has the {field} {_shown(value)}, which is no text"
        raise _refused(source, why, f"Write it in quotes, as {field}: '003' or {field}: 'no'.")


def _check_costs(costs: object, source: str) -> None:
    """Refuses two costs of one kind, of which the first would count. Stored clusters that have such
    are still read."""
    seen: set[str] = set()
    for cost in costs if isinstance(costs, list) else ():
        kind = cost.get("kind") if isinstance(cost, dict) else None
        if not isinstance(kind, str):
            continue
        if kind in seen:
            raise _refused(source, f"two costs are of {_shown(kind)}", "Keep one of them.")
        seen.add(kind)


NODE_NUMBERS = (
    "bandwidth_gbps", "intra_bandwidth_gbps", "latency_us", "usd_per_hour", "nics", "nic_gbps"
)  # fmt: skip


def _fill_in_rates(node: dict[Any, Any], transport: str, where: str) -> None:
    """The payload rates that the node leaves out, from the rates of its NICs and links as sold."""
    if node.get("bandwidth_gbps") is None:
        if not node.get("nic_gbps"):
            raise _refused(
                where,
                "bandwidth_gbps is missing",
                "State the payload rate of its NIC in Gbit/s: TCP carries some 95 % of the wire's. "
                "Or state nics and nic_gbps, the rate of one on the wire.",
            )
        rate = nic_payload_gbps(node.get("nics") or 1, node["nic_gbps"], transport)
        node["bandwidth_gbps"] = rate
    link = "nvlink" if node.get("nvswitch") is True else node.get("gpu_link")
    types = [device["type"] for device in node["devices"]]
    known = bool(types) and all(each in DEVICE_TYPES for each in types)
    if known and node.get("intra_bandwidth_gbps") is None and link in ("nvlink", "pcie"):
        node["intra_bandwidth_gbps"] = gpu_payload_gbps(types, link) or None


def _check_node(node: dict[Any, Any], where: str) -> None:
    _check_fields(node, NODE_FIELDS, where)
    _check_numbers(node, NODE_NUMBERS, where)
    devices = node.get("devices", [] if node.get("server_only") else None)
    if not isinstance(devices, list):
        raise _refused(
            where, "devices is missing", "List them, e.g. `devices: [{type: t4, count: 4}]`."
        )
    node["devices"] = devices
    for device in devices:
        if not isinstance(device, dict) or not isinstance(device.get("type"), str):
            raise _refused(where, f"a device must state its type, got {_shown(device)}")
        _check_fields(device, DEVICE_FIELDS, where)
        _check_numbers(device, ("memory_gb", "slowdown"), where)
        count = device.get("count", 1)
        if isinstance(count, bool) or not isinstance(count, int) or count > MAX_DEVICES:
            raise _refused(
                where,
                f"device count must be a whole number up to {MAX_DEVICES}, got {_shown(count)}",
            )


def _check_fields(given: dict[Any, Any], known: tuple[str, ...], where: str) -> None:
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise _refused(where, f"unknown field {unknown[0]!r}", f"Known: {', '.join(known)}.")


def _check_numbers(given: dict[Any, Any], fields: tuple[str, ...], where: str) -> None:
    for field in fields:
        value = given.get(field)
        if value is None:
            continue
        if isinstance(value, str) and EXPONENT.fullmatch(value):
            value = given[field] = float(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and abs(value) < MAX_NUMBER):
            why = f"{field} must be a number below {MAX_NUMBER:g}, got {_shown(value)}"
            raise _refused(where, why)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def _refused(where: str, why: str, remedy: str = "") -> InvalidInput:
    return InvalidInput(
        f"{where}: {why}.",
        thing=where,
        value=why,
        remedy=remedy or "See datasets/clusters/ for examples.",
    )
