"""The order in which a GPU's messages leave is the plan's: the same on every rank, and no message
waits for one behind it."""

from functools import cache

import pytest

from autosync.domain import Domain
from autosync.plan import Plan, compile_plans, plan_of
from autosync.population import encode
from autosync.runtime.device.streams import ONE_QUEUE
from autosync.runtime.layout.records import VALUES, issue_order, place_of_buffers, queue_names
from autosync.search.designs.design_table import hand_designed
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from tests.autosync.runtime.cases import Case, make_model, plan
from tests.autosync.runtime.drawn import domain

DRAWN = 200


@cache
def plans() -> tuple[Plan, ...]:
    """Of random strategies and of the hand-designed ones, dense and with tables, on 2 x 2 ranks."""
    found: list[Plan] = []
    for model in ("transformer", "sparse_lookup"):
        where = domain(model, 2, 2)
        space = Space(factors=True, hierarchical=True, slice_bytes=(0, 96))
        population = sample(where, space, 0, DRAWN, 3)
        table = compile_plans(population, where)
        found += [plan_of(table, population, index, where) for index in range(DRAWN)]
        found += of_hand(where)
    return tuple(made for made in found if made.engine == "autosync")


def of_hand(where: Domain) -> list[Plan]:
    strategies = [strategy for _, strategy in hand_designed(where, Space())]
    population = encode(strategies, where)
    table = compile_plans(population, where)
    return [plan_of(table, population, index, where) for index in range(len(strategies))]


def test_no_message_waits_for_one_behind_it() -> None:
    """So whoever works the order off from its front, as gradients come and `step()` is called,
    comes to its end."""
    missing_gradients = 0
    for made in plans():
        order, values = issue_order(made), [m.carries_values for m in made.messages]
        assert sorted(order) == list(range(len(made.messages)))
        place = {index: number for number, index in enumerate(order)}
        reductions = [place[index] for index in order if not values[index]]
        assert reductions == list(range(len(reductions)))
        for index, message in enumerate(made.messages):
            if message.after >= 0:
                assert place[message.after] < place[index]
                assert values[index] >= values[message.after]
                before = made.messages[message.after]
                assert message.carries_values == (
                    before.update.leaves_values or before.carries_values
                )
                missing_gradients += before.update.leaves_values
    assert missing_gradients > DRAWN, "plans in which messages wait for step()"


def test_one_queue_for_all_that_the_backend_carries() -> None:
    ragged = 0
    for made in plans():
        one, many = queue_names(made, one_order=True), queue_names(made)
        for message, name, usual in zip(made.messages, one, many, strict=True):
            ragged += message.operation.ragged
            assert name == (usual if message.operation.ragged else ONE_QUEUE)
    assert ragged > DRAWN


def test_module_buffers_stand_where_they_hold_up_the_least() -> None:
    """Behind what is sent before the end of backward, and in front of what may continue during the
    next forward pass: it begins when they are there."""
    continues = 0
    for made in plans():
        order = [made.messages[index] for index in issue_order(made)]
        before, behind = order[: place_of_buffers(made)], order[place_of_buffers(made) :]
        last = max(message.ready for message in order)
        assert not any(message.carries_values for message in before)
        if made.overlap_forward:
            assert all(message.ready < last for message in before)
            assert behind[0].ready == last
            continues += not all(message.carries_values for message in behind[1:])
        else:
            assert all(message.carries_values for message in behind)
    assert continues > DRAWN / 4


@pytest.mark.parametrize("method", ["zero", "ps", "hierarchical_ps"])
def test_messages_that_wait_for_step_have_their_own_queue(method: str) -> None:
    """In host memory: else a reduction could stand behind it."""
    made = plan(Case(method=method, groups=3, ranks_per_node=2), make_model("mlp"), 4)
    values = [message.carries_values for message in made.messages]
    assert any(values)
    for name, late in zip(queue_names(made), values, strict=True):
        assert name.endswith(VALUES) == late
