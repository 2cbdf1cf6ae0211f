"""What strategies carry of extensions keeps the JSON, and with it the identity, of version 1."""

import subprocess
import sys
from pathlib import Path

import pandas
import pytest

import autosync.datasets
from autosync.documents import from_data, from_json, to_data, to_json
from autosync.errors import InvalidInput, InvalidStrategy
from autosync.extensions.offload.document import Offload
from autosync.extensions.placement.document import PlacedModule, Placement
from autosync.extensions.registry import Entries
from autosync.extensions.staleness.document import Staleness
from autosync.strategy import AllReduce, Strategy, VariableChoice, even_replicas, whole

PLAIN = Strategy((VariableChoice("a", whole((3,)), (AllReduce(0),)),), even_replicas(2))
PLACED = Placement((PlacedModule("b", (0,), (1.0,)),))
IDS: dict[str, Entries] = {
    "2e006af19fffcd6675e98886200494cb": (),
    "c4ce5894541a740dd35d5c08125af8e1": (Staleness(2),),
    "c7c8f4d20bb44663fda2527b689ca57d": (Offload(5),),
    "04823617bf1b9764cfe48d150a88471f": (Offload(5, True, True),),
    "f960a7c855e92eb642087dbc7e014aea": (PLACED,),
    "3e2619e919ffaf95f543d0ae6dcaae18": (Staleness(255), Offload(7, values=True), PLACED),
}
"""As they were when staleness, swap and placement were fields of a strategy."""


@pytest.mark.parametrize("identity", IDS)
def test_identities_are_those_of_before(identity: str) -> None:
    strategy = PLAIN.carrying(*IDS[identity])
    assert strategy.id == identity
    assert from_json(Strategy, to_json(strategy)) == strategy


def test_stored_strategies_keep_their_identity() -> None:
    file = Path(next(iter(autosync.datasets.__path__))) / "runtimes" / "strategies.parquet"
    stored = pandas.read_parquet(file)
    for row in stored.iloc[::29].itertuples():
        assert from_json(Strategy, str(row.strategy)).id == row.strategy_id


def test_entries_are_fields_of_the_strategy_in_json() -> None:
    assert to_data(PLAIN)["staleness"] == 0
    assert not {"swap", "placement", "extensions"} & to_data(PLAIN).keys()
    carrying = to_data(PLAIN.carrying(Staleness(3), Offload(5), PLACED))
    assert (carrying["staleness"], carrying["swap"]) == (3, {"budget_bytes": 5})
    assert carrying["placement"] == [{"module": "b", "ranks": [0], "shares": [1.0]}]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("staleness", 256, "staleness is 256"),
        ("staleness", "late", "strategy, staleness"),
        ("swap", {"budget_bytes": 0}, "budget_bytes is 0"),
        ("extensions", [], "strategy, extensions"),
        ("other", 1, "strategy, other"),
    ],
)
def test_wrong_entries_are_refused_by_name(field: str, value: object, why: str) -> None:
    with pytest.raises((InvalidInput, InvalidStrategy), match=why):
        from_data(Strategy, to_data(PLAIN) | {field: value}, "strategy")


def test_entries_are_in_the_order_of_their_keys_and_each_is_there_once() -> None:
    one, other = PLAIN.carrying(Offload(5), PLACED), PLAIN.carrying(PLACED, Offload(5))
    assert one == other
    assert one.carrying(Offload(6)).extension(Offload) == Offload(6)
    assert one.without(Offload).extensions == (PLACED,)
    with pytest.raises(InvalidStrategy, match="at most one of each"):
        Strategy(PLAIN.choices, PLAIN.replicas, extensions=(Offload(5), Offload(6)))


def test_training_loads_neither_predictions_nor_proposals() -> None:
    code = f"""
import sys, autosync
autosync.distribute
from autosync.documents import from_json
from autosync.extensions.registry import verification_of
from autosync.strategy import Strategy
strategy = from_json(Strategy, {to_json(PLAIN.carrying(Staleness(1), Offload(5), PLACED))!r})
for entry in strategy.extensions:
    verification_of(entry.key).label(strategy)
above = ("autosync.simulator", "autosync.search", "autosync.api")
loaded = [name for name in sys.modules if name.startswith(above)]
loaded += [name for name in sys.modules if name.endswith((".prediction", ".proposals"))]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
