"""The 1,797 handwritten digits that come with scikit-learn: nothing to download, eight by eight pixels."""

from __future__ import annotations

import numpy as np
import torch

from fedssd.data.dataset import Dataset, with_test_split


def read() -> Dataset:
    """Digits as float32 [N, 1, 8, 8] in [0, 1], with a fixed fifth of each class as the test set."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.from_numpy(np.asarray(bundle.images, np.float32) / 16.0).unsqueeze(1)
    labels = torch.from_numpy(np.asarray(bundle.target, np.int64))
    return with_test_split("digits", images, labels, tuple("0123456789"))
