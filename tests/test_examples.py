"""The example scripts train under torchrun, and the two lines change nothing but the speed."""

from pathlib import Path

import pytest

from autosync.bundle import make_bundle, save_bundle
from autosync.domain import Domain
from autosync.search.designs.design_table import DESIGNS
from tests.example_scripts import example_domain, losses
from tests.long_parameters import long_after

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def domain() -> Domain:
    return example_domain("example")


@pytest.fixture(scope="module")
def before() -> list[float]:
    return losses("before.py")


@pytest.mark.parametrize("name", long_after(1, ["dear", "ddp", "ps_load_balanced"]))
def test_after_trains_as_before(
    tmp_path: Path, domain: Domain, before: list[float], name: str
) -> None:
    strategy = DESIGNS[name](domain)
    save_bundle(make_bundle(strategy, domain), tmp_path / "best.json")
    after = losses("after.py", str(tmp_path / "best.json"))
    assert len(before) == 2
    assert before[1] != before[0]
    assert after == pytest.approx(before, abs=2e-4)
