"""What distilling methods share: class masks, Kullback–Leibler terms and the credibility matrix."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core.contract import Auxiliary
from fedssd.core.net import Net
from fedssd.core.tree import Tree, overridable


def is_class(y: Tensor, classes: int) -> Tensor:
    """[..., K], true at each sample's class (``F.one_hot`` does not work inside vmap)."""
    return y[..., None] == torch.arange(classes, device=y.device)


def check_temperature(method: str, temperature: float | Tensor) -> None:
    """A temperature divides logits; engines pass tensors in place of numbers, which were checked before."""
    if isinstance(temperature, float) and not temperature > 0:
        raise ValueError(f"{method}.temperature expects a number above 0, got {temperature:g}")


def kl_divergence(teacher: Tensor, student: Tensor, temperature: float | Tensor) -> Tensor:
    """T² KL( softmax(teacher/T) ‖ softmax(student/T) ) per sample; Hinton's T² keeps the gradient's scale."""
    log_p = F.log_softmax(teacher / temperature, dim=-1)
    log_q = F.log_softmax(student / temperature, dim=-1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1)


@overridable
def confusion_counts(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """counts[k1, k2]: how many samples of class k1 the model calls k2."""
    exact = torch.promote_types(logits.dtype, torch.float32)  # half precision cannot count past 256
    truth = is_class(labels, classes).to(exact)  # [N, K]
    called = is_class(logits.argmax(-1), classes).to(exact)  # [N, K]
    return truth.transpose(-1, -2) @ called


def credibility_matrix(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """A[k1, k2]: the share of class k1 that the model calls k2; rows sum to 1, or to 0 for an absent class."""
    counts = confusion_counts(logits, labels, classes)
    return counts / counts.sum(-1, keepdim=True).clamp(min=1)


def measure_credibility(net: Net, weights: Tree, auxiliary: Auxiliary | None) -> Tensor:
    """The global model's credibility matrix on the server's auxiliary set, a chunk at a time."""
    if auxiliary is None or len(auxiliary.y) == 0:
        raise ValueError("this method measures the global model on an auxiliary set, and there is none")
    logits = torch.cat([net(weights, x).logits for x in torch.split(auxiliary.x, 1024)])
    return credibility_matrix(logits, auxiliary.y, logits.shape[-1])
