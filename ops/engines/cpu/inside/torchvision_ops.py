"""Declare two operators of torchvision, whose CUDA build cannot load its library beside a CPU torch; import this before it."""

import torch

_library = torch.library.Library("torchvision", "FRAGMENT")
_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
