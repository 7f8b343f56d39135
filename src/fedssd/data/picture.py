"""A partition drawn in plain text: one row a client, one bar a class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedssd.data.partition import Partition, label_distance

BARS = "▁▂▃▄▅▆▇█"
NOTHING = "·"
WIDE = 10  # up to so many classes, each bar has its count beside it
BAR_COLUMNS = 64  # with more classes, neighbours share a bar
MOST_ROWS = 60


def picture(partition: Partition, labels: Tensor, class_names: Sequence[str]) -> str:
    """A client × class table whose bars are scaled to the largest entry; at most 100 columns wide."""
    counts = partition.counts(labels, len(class_names))  # [clients, classes]
    title = f"{partition.spec}, {len(partition.clients)} clients, seed {partition.seed}, hash {partition.hash}"
    table = _with_counts(counts, class_names) if len(class_names) <= WIDE else _bars_only(counts)
    shown = table[: MOST_ROWS + 1]
    if len(table) > len(shown):
        shown.append(f"… and {len(table) - len(shown)} more clients")
    sizes = sorted(partition.sizes)
    foot = f"samples a client: smallest {sizes[0]}, median {sizes[len(sizes) // 2]}, largest {sizes[-1]}"
    far = label_distance(counts)
    mix = (
        f"labels, mean distance to all clients': Hellinger {far.hellinger:.2f}, Jensen-Shannon {far.jensen_shannon:.2f}"
    )
    return "\n".join([title, *shown, foot, mix])


def bar(value: int, largest: int) -> str:
    """One character whose height is ``value`` against ``largest``; anything above zero is visible."""
    if value == 0:
        return NOTHING
    return BARS[min(len(BARS) - 1, value * len(BARS) // max(largest, 1))]


def _with_counts(counts: Tensor, class_names: Sequence[str]) -> list[str]:
    largest = int(counts.max())
    lines = [f"{'client':>6} {'samples':>7} " + "".join(f" {name[:7]:>7}" for name in class_names)]
    for client, row in enumerate(counts.tolist()):
        cells = "".join(f" {bar(value, largest)}{value:>6}" for value in row)
        lines.append(f"{client:>6} {sum(row):>7} {cells}")
    return lines


def _bars_only(counts: Tensor) -> list[str]:
    """Bars of neighbouring classes added up where there are too many, and what each client holds in words."""
    clients, classes = counts.shape
    group = -(-classes // BAR_COLUMNS)
    missing = -classes % group
    padded = torch.cat([counts, counts.new_zeros(clients, missing)], 1)
    grouped = padded.view(clients, -1, group).sum(2)  # [clients, bars]
    largest = int(grouped.max())
    heading = f"{classes} classes, one a bar" if group == 1 else f"{classes} classes, {group} a bar"
    lines = [f"{'client':>6} {'samples':>7} {'held':>5} {'top':>4}  {heading}"]
    for client, row in enumerate(grouped.tolist()):
        mine = counts[client]
        held, samples = int((mine > 0).sum()), int(mine.sum())
        top = f"{int(mine.max()) / max(samples, 1):.0%}"
        bars = "".join(bar(value, largest) for value in row)
        lines.append(f"{client:>6} {samples:>7} {held:>5} {top:>4}  {bars}")
    return lines
