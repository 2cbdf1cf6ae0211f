"""torchmetrics, which Lightning imports, imports torchvision where that is installed. Its compiled
operators load beside one version of torch only; without them two declarations are missing, which
none of these tests uses."""

import sys

import torch

FOR_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

if "torchvision" not in sys.modules:
    try:
        import torchvision
    except ModuleNotFoundError:
        pass
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", FOR_BOXES)
        import torchvision  # noqa: F401
