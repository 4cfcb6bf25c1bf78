"""DINOv2, CLIP or BEiT as an encoder, from a folder that transformers saved.

python vision_encoder.py encoder.safetensors  # once: writes its weights as one file

Copy this file and write your folder; docs/features.md says how to train on it.
"""

import json
import sys
from pathlib import Path

from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

FOLDER = Path("/srv/vision")
CONFIG = AutoConfig.from_pretrained(FOLDER)
CONFIG = getattr(CONFIG, "vision_config", CONFIG)  # CLIP has a part for texts besides


class Vision(nn.Module):
    """What a vision transformer says of a whole image."""

    def __init__(self) -> None:
        """Make the network, without weights."""
        super().__init__()
        self.body = AutoModel.from_config(CONFIG)
        self.pixels = json.loads((FOLDER / "preprocessor_config.json").read_text())

    def forward(self, images: Tensor) -> Tensor:
        """Take images between 0 and 1, grey or in colours, of any size."""
        side = self.pixels.get("crop_size", self.pixels["size"])["height"]
        mean = images.new_tensor(self.pixels["image_mean"]).view(3, 1, 1)
        std = images.new_tensor(self.pixels["image_std"]).view(3, 1, 1)
        large = nn.functional.interpolate(
            images.expand(-1, 3, -1, -1), (side, side), mode="bicubic"
        )
        return self.body((large - mean) / std).pooler_output


if __name__ == "__main__":
    from safetensors.torch import save_file

    encoder = Vision()
    encoder.body, told = AutoModel.from_pretrained(
        FOLDER, config=CONFIG, local_files_only=True, output_loading_info=True
    )
    assert not told["missing_keys"], told["missing_keys"]
    save_file(encoder.state_dict(), sys.argv[1])
