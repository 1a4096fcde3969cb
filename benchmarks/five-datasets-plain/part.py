"""A part of the five data sets, as data set files of the same form: python benchmarks/five-datasets-plain/part.py TO

Of each set in $CODECL_DATA 8,000 training and 2,000 test images at random.
"""

import os
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

SETS = ("cifar10", "mnist", "svhn", "fashion-mnist", "notmnist")
COUNTS = {"train": 8000, "test": 2000}


def main(folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in SETS:
        data, draws = load_file(f"{os.environ['CODECL_DATA']}/{name}.safetensors"), np.random.default_rng(0)
        for split, count in COUNTS.items():
            chosen = draws.permutation(len(data[f"{split}_labels"]))[:count]
            for what in ("images", "labels"):
                data[f"{split}_{what}"] = np.ascontiguousarray(data[f"{split}_{what}"][chosen])
        save_file(data, f"{folder}/{name}.safetensors")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
