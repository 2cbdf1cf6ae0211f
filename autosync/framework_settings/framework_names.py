"""The frameworks that strategies are exported to; quick to import."""

from typing import Literal

FrameworkName = Literal["autosync", "ddp", "fsdp2", "deepspeed", "horovod"]

TITLES: dict[FrameworkName, str] = {
    "autosync": "AutoSync",
    "ddp": "torch's DDP",
    "fsdp2": "torch's FSDP2",
    "deepspeed": "DeepSpeed",
    "horovod": "Horovod",
}
