"""Lets torchvision be imported where its compiled operators do not load.

They are built for one version of torch. Without them `import torchvision` fails, and with it those
of timm, transformers and Lightning, as shapes are registered for operators that nobody declared.
Declared here are those; whoever calls one (non-maximum suppression, in evaluation) still fails.
"""

import sys
from importlib.util import find_spec

import torch

FOR_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def declare_operators() -> None:
    """Nothing where torchvision is not installed, or loads by itself."""
    if "torchvision" in sys.modules or find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", FOR_BOXES)
