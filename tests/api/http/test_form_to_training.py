"""From the dashboard's form to a job that trains with the answer, as a person does it: files
uploaded and the form filled in with a browser, a real worker with real trials, the page watched
until it ends, the bundle downloaded, and two ranks that train by it as under torch's DDP."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autosync
from autosync.documents import to_json
from autosync.importing import import_module
from examples.network import BATCH_SIZE, PlainNetwork, inputs, loss, synthetic_data
from tests.api.cli.command import LONGEST_SECONDS, start
from tests.api.http.serving import Service
from tests.autosync.runtime.cases import worst_difference
from tests.autosync.runtime.ranks import ranks

pytestmark = pytest.mark.timeout(900)
CLUSTER = """
name: two-desks
nodes:
  - {address: desk-0, devices: [{type: cpu}], bandwidth_gbps: 10}
  - {address: desk-1, devices: [{type: cpu}], bandwidth_gbps: 10}
"""
BUDGET, REPEATS = 3, 2
ITERATIONS = 4


def test_from_the_form_to_a_job_that_trains_with_the_answer(
    page: Page, service: Service, module_url: str, tmp_path: Path
) -> None:
    upload(page, tmp_path)
    fill_in(page)
    page.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile("/tunings/[0-9a-f]{32}$"))
    expect(page.locator("#state")).to_have_text("queued")
    page.evaluate("window.neverLoadedAgain = true")
    worker = start(tmp_path, "worker", "--db", module_url)
    try:
        expect(page.locator("#state")).to_have_text("running")
        expect(page.locator("figure#convergence canvas").first).to_be_visible(
            timeout=LONGEST_SECONDS * 1e3
        )
        expect(page.locator("#state")).to_have_text("finished", timeout=LONGEST_SECONDS * 1e3)
    finally:
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=LONGEST_SECONDS)
    assert worker.returncode == 0, said
    assert page.evaluate("window.neverLoadedAgain")
    expect(page.locator("table.ranked tbody tr")).to_have_count(BUDGET)
    expect(page.locator("figure#confirmation canvas").first).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download best.json").click()
    bundle = tmp_path / "best.json"
    download.value.save_as(bundle)
    with ranks(2) as pair:
        for difference in pair.run(difference_from_ddp, str(bundle)):
            assert difference < 1e-5


def upload(page: Page, folder: Path) -> None:
    """The model's graph and the cluster, each by its form."""
    graph = import_module(PlainNetwork, inputs(), loss, name="plain", batch_size=BATCH_SIZE)
    (folder / "graph.json").write_text(to_json(graph))
    (folder / "cluster.yaml").write_text(CLUSTER)
    page.goto("/models")
    page.get_by_text("Upload a model's graph").click()
    page.get_by_label("Graph").set_input_files(folder / "graph.json")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("plain")
    page.goto("/clusters")
    page.get_by_text("Upload a cluster file").click()
    page.get_by_label("Cluster", exact=True).set_input_files(folder / "cluster.yaml")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("two-desks")


def fill_in(page: Page) -> None:
    page.get_by_role("link", name="Tune on it").click()
    form = page.locator("form[action='/tunings']")
    expect(form.locator("select[name=cluster] option:checked")).to_contain_text("two-desks")
    model = form.locator("select[name=graph]")
    uploaded = model.locator("option", has_text=re.compile("^plain, batch"))
    model.select_option(uploaded.get_attribute("value"))
    form.get_by_label("Budget").fill(str(BUDGET))
    form.get_by_label("Bytes that trials move").select_option("1")
    form.get_by_text("More choices").click()
    form.get_by_label("Where trials run").select_option("local")
    form.get_by_label("Ranked by").select_option("timeline")
    form.get_by_label("Times slower").fill("1")
    form.get_by_label("Repeats").fill(str(REPEATS))


def difference_from_ddp(rank: int, world: int, bundle: str) -> float:
    """Between the weights of a model that trains by the bundle and those of one under DDP."""
    os.environ["AUTOSYNC_HOST"] = f"desk-{rank}"
    ours, theirs = seeded_network(), seeded_network()
    model, optimizer = autosync.distribute(ours, make_sgd(ours), bundle)
    train(model, optimizer, rank, world)
    if not isinstance(model, DistributedDataParallel):
        model.state_dict()  # ends what an overlapped plan still owes
    before = seeded_network()
    ddp = DistributedDataParallel(theirs)
    train(ddp, make_sgd(theirs), rank, world)
    assert worst_difference(ours, before) > 1e-3, "it has not trained"
    return worst_difference(ours, theirs)


def seeded_network() -> nn.Module:
    torch.manual_seed(0)
    return PlainNetwork()


def make_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, world: int) -> None:
    """Each rank on samples of its own."""
    images, labels = synthetic_data(BATCH_SIZE * world * ITERATIONS).tensors
    for iteration in range(ITERATIONS):
        first = (iteration * world + rank) * BATCH_SIZE
        mine = slice(first, first + BATCH_SIZE)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
        optimizer.step()
