"""Lets torchvision be imported where its compiled operators do not load.

They are built for one version of torch. Without them `import torchvision` fails, and with it
timm's, at the registration of shapes for an operator that nobody has declared. Declared here are
those that it registers: whoever calls one (non-maximum suppression, in evaluation) still fails.
"""

import torch

_DECLARED = torch.library.Library("torchvision", "FRAGMENT")


def declare_operators() -> None:
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _DECLARED.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
