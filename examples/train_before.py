"""A complete data-parallel training script, with torch's DistributedDataParallel.

torchrun --nproc-per-node 2 examples/train_before.py run.pt
python examples/train_before.py run.pt --spawn 2

It accumulates gradients, clips them, decays the learning rate, evaluates, and goes on from
`run.pt` where there is one.
"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from network import BATCH_SIZE, PlainNetwork, synthetic_data
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

ACCUMULATE = 2
MAX_GRAD_NORM = 1.0


def train(checkpoint: Path, epochs: int) -> None:
    torch.manual_seed(0)
    model: nn.Module = PlainNetwork()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
    network = DistributedDataParallel(model)
    begin = load(checkpoint, model, optimizer, scheduler) if checkpoint.exists() else 0

    samples = synthetic_data()
    data, held_out = Subset(samples, range(768)), Subset(samples, range(768, 1024))
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler)
    for epoch in range(begin, epochs):
        sampler.set_epoch(epoch)
        network.train()
        for step, (images, labels) in enumerate(loader):
            last = (step + 1) % ACCUMULATE == 0
            with nullcontext() if last else network.no_sync():
                loss = nn.functional.cross_entropy(network(images), labels)
                (loss / ACCUMULATE).backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
        score = evaluate(network, held_out)
        save(checkpoint, model, optimizer, scheduler, epoch + 1)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: held-out loss {score:.5f}")


def evaluate(network: nn.Module, data: Subset) -> float:
    """The mean loss; every rank sees its part of the data."""
    mine = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
    network.eval()
    total = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for images, labels in DataLoader(mine, BATCH_SIZE):
            loss = nn.functional.cross_entropy(network(images), labels, reduction="sum")
            total += torch.tensor([loss.item(), len(labels)])
    dist.all_reduce(total)
    return float(total[0] / total[1])


def save(path: Path, model: nn.Module, optimizer, scheduler, epochs: int) -> None:
    if dist.get_rank() == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epochs": epochs,
        }
        draft = path.with_suffix(".draft")
        torch.save(state, draft)
        draft.replace(path)  # a job that is stopped meanwhile keeps the last one
    dist.barrier()


def load(path: Path, model: nn.Module, optimizer, scheduler) -> int:
    """Returns how many epochs are done."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return int(state["epochs"])


def spawned(rank: int, world: int, checkpoint: Path, epochs: int) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    train(checkpoint, epochs)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--spawn", type=int, default=0, help="ranks to start, without torchrun")
    given = parser.parse_args()
    if given.spawn:
        mp.spawn(spawned, (given.spawn, given.checkpoint, given.epochs), given.spawn)
        return
    dist.init_process_group("gloo")
    train(given.checkpoint, given.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
