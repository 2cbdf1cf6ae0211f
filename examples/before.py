"""Data-parallel training with torch's DistributedDataParallel.

torchrun --nproc-per-node 2 examples/before.py
"""

import torch
import torch.distributed as dist
from network import BATCH_SIZE, SmallNetwork, synthetic_data
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = SmallNetwork()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    model = DistributedDataParallel(model)

    data = synthetic_data()
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
