"""A replay that misbehaves on demand: the key of a trial says how, and on which rank.

Faults: `hang` (sleeps), `stopped` (SIGSTOP, in the middle of the others' collective), `crash`
(raises), `exit`, `killed` (SIGKILL), `oom` (allocates more than it may), `link` (its node's link
goes down; on a testbed).
"""

import os
import resource
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from autosync.bundle import Bundle
from autosync.trials.contract import Workload
from autosync.trials.worker.training_job import ReplayJob, build_replay


@dataclass
class FaultyJob:
    """Keys like `hang:1` or `anything/hang:1`: rank 1 hangs in its second iteration; other keys
    behave."""

    inner: ReplayJob
    rank: int
    fault: str = ""
    iteration: int = 0
    scaled: bool = True

    @property
    def model(self) -> nn.Module:
        return self.inner.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.inner.optimizer

    def begin(self, key: str, bundle: Bundle) -> None:
        fault, _, rank = key.rpartition("/")[2].partition(":")
        self.fault = fault if rank == str(self.rank) else ""
        self.iteration = 0
        self.inner.begin(key, bundle)

    def loss(self, model: nn.Module) -> Tensor:
        self.iteration += 1
        if self.iteration == 2:
            self._misbehave()
        return self.inner.loss(model)

    def _misbehave(self) -> None:
        match self.fault:
            case "hang":
                print("hanging now", flush=True)
                time.sleep(3600)
            case "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "link":
                subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
            case "crash":
                raise RuntimeError("crashed on purpose")
            case "exit":
                os._exit(3)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "oom":
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                used = pages * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))
                torch.ones(2**28)


def build_faulty(workload: Workload, rank: int) -> FaultyJob:
    return FaultyJob(build_replay(workload, rank), rank)
