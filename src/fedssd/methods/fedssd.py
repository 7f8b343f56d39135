"""FedSSD: distil the global model's logits only as far as class and sample make them credible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core.contract import Auxiliary, Batch, Local
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree, overridable
from fedssd.methods.distillation import measure_credibility

SQUARE = ("inside", "outside")
REDUCTIONS = ("sum", "mean")
NORMALISERS = ("batch", "dataset", "half")


def class_credibility(credibility: Tensor) -> Tensor:
    """M_class[k] = A[k,k] · (1 − max_{j≠k} A[j,k]): high recall, and no other class often mistaken for k."""
    off_diagonal = credibility - torch.diag_embed(credibility.diagonal())
    return credibility.diagonal() * (1 - off_diagonal.amax(0))


def sample_credibility(teacher_logits: Tensor, labels: Tensor, exponent: float | Tensor = 0.5) -> Tensor:
    """M_sample(x) = 1 − (1 − p_g(x)[y])^exponent, one number per sample."""
    probability = teacher_logits.softmax(-1).gather(-1, labels[..., None])[..., 0]
    return 1 - (1 - probability).clamp(min=0) ** exponent


@overridable
def distillation_weights(
    teacher_logits: Tensor,
    labels: Tensor,
    credibility: Tensor,
    floor: float | Tensor = 0.1,
    exponent: float | Tensor = 0.5,
) -> Tensor:
    """M(x)[k] / M_max = [M_class[k] · M_sample(x) − floor]⁺, between 0 and 1 − floor."""
    by_class = class_credibility(credibility)  # [K]
    by_sample = sample_credibility(teacher_logits, labels, exponent)  # [B]
    return F.relu(by_sample[..., None] * by_class - floor)  # [B, K]


@overridable
def weighted_square(
    logits: Tensor, teacher_logits: Tensor, weight: Tensor, m_max: float | Tensor, square: str, reduction: str
) -> Tensor:
    """‖M ⊙ (z_g − z)‖² per sample with M = M_max · weight, or Σ M ⊙ (z_g − z)² with M outside the square."""
    scale = m_max * weight
    terms = (scale.square() if square == "inside" else scale) * (teacher_logits - logits).square()  # [B, K]
    return terms.sum(-1) if reduction == "sum" else terms.mean(-1)


@overridable
def shares(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of each sample's weights [B, K] the mean, and the share above zero."""
    return weight.mean(-1), (weight > 0).to(weight.dtype).mean(-1)


def selective_distillation(
    logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    credibility: Tensor,
    m_max: float | Tensor = 0.01,
    *,
    floor: float | Tensor = 0.1,
    exponent: float | Tensor = 0.5,
    square: str = "inside",
    reduction: str = "sum",
) -> Tensor:
    """FedSSD's loss per sample [B], for anybody's training loop; add its mean to the cross-entropy.

    The teacher's logits and the credibility matrix are constants: no gradient flows into them.
    """
    teacher_logits, credibility = teacher_logits.detach(), credibility.detach()
    weight = distillation_weights(teacher_logits, labels, credibility, floor, exponent)
    return weighted_square(logits, teacher_logits, weight, m_max, square, reduction)


@dataclass(frozen=True)
class FedSSD(Local):
    """L = CE + mean over the batch of ‖M(x) ⊙ (z_g − z)‖², M(x)[k] = M_max [M_class[k] M_sample(x) − 0.1]⁺.

    Choices the paper leaves open are options: the weight inside the square (as printed) or outside it, sum or mean
    over classes, and the normaliser: ``batch`` mean, ``dataset`` (Algorithm 1 divides the batch's sum by |D_i|) or
    ``half`` (Lemma 1 carries a factor ½).
    """

    name: ClassVar[str] = "fedssd"
    formula: ClassVar[str] = "CE + ‖M(x) ⊙ (z_g − z)‖², M(x)[k] = M_max [M_class[k] M_sample(x) − 0.1]⁺"
    paper: ClassVar[str] = (
        "He et al., Learning Critically: Selective Self Distillation in Federated Learning on Non-IID Data"
    )
    tells_down: ClassVar[str] = "mean weights, K² rates on D_V"
    strength: ClassVar[str] = "m_max"
    published: ClassVar = {"cifar10": {"m_max": 0.01}, "cifar100": {"m_max": 0.001}, "tiny-imagenet": {"m_max": 0.001}}
    needs_auxiliary: ClassVar[bool] = True

    m_max: float = 0.01
    floor: float = 0.1
    exponent: float = 0.5
    square: str = "inside"
    reduction: str = "sum"
    normaliser: str = "batch"

    def __post_init__(self) -> None:
        for field, known in (("square", SQUARE), ("reduction", REDUCTIONS), ("normaliser", NORMALISERS)):
            if getattr(self, field) not in known:
                raise ValueError(f"fedssd.{field} expects one of {', '.join(known)}, got {getattr(self, field)!r}")

    def broadcast(self, net: Net, weights: Tree, memory: Tree, auxiliary: Auxiliary | None) -> Tree:
        return {"credibility": measure_credibility(net, weights, auxiliary)}

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        logits = net(sent["weights"], batch.x).logits
        weight = distillation_weights(logits, batch.y, sent["credibility"], self.floor, self.exponent)
        return {"logits": logits, "weight": weight}

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        value = weighted_square(out.logits, target["logits"], target["weight"], self.m_max, self.square, self.reduction)
        if self.normaliser == "dataset":
            return value * (batch.mask.sum() / batch.samples)
        return value / 2 if self.normaliser == "half" else value

    def distilled(self, batch: Batch, target: Tree) -> dict[str, Tensor]:
        return dict(zip(("weight", "active"), shares(target["weight"]), strict=True))
