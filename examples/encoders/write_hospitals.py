"""Writes images of Fashion-MNIST as the folders of six hospitals, and of their public images.

python examples/encoders/write_hospitals.py  # into runs/own_images
"""

from pathlib import Path

import numpy as np
from PIL import Image

from fl_dp.tasks.datasets import load_dataset

images = load_dataset("fashion_mnist")
rows = np.random.default_rng(0).permutation(len(images.train_y))
parts = {"public/train": 1100, "public/test": 100}
parts |= {
    f"data/train/hospital_{number}": records
    for number, records in enumerate((500, 1000, 1500, 2500, 4000, 5000), start=1)
}
for folder, records in parts.items():
    taken, rows = rows[:records], rows[records:]
    for row in taken:
        place = Path("runs/own_images", folder, str(images.train_y[row]))
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.train_x[row, 0]).save(place / f"{row}.png")
for row in range(2000):
    place = Path("runs/own_images/data/test", str(images.test_y[row]))
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(images.test_x[row, 0]).save(place / f"{row}.png")
