"""ResNet-18 for small images, made for clipping record by record.

The network of CIFAR-10 experiments: a 3x3 stem without max-pooling, so a 32x32 image reaches the
last stage as 4x4, and GroupNorm in place of BatchNorm. Nothing is overwritten in place: a
per-record gradient needs each layer's inputs.

References:
    He et al. 2016, "Deep Residual Learning for Image Recognition", sections 3.3 and 4.2.
    De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification through
        Scale", section 3: group normalisation with 16 groups under DP-SGD.
"""

from __future__ import annotations

from torch import Tensor, nn

_BLOCKS_PER_STAGE = 2  # with four stages and two convolutions a block: 18 layers with both ends
_MOST_GROUPS = 16
_CHANNELS_PER_GROUP = 4  # at least


class ResNet18(nn.Module):
    """Classifies images `(n, channels, height, width)` with sides of at least 8.

    Width 64 and ten classes give 11.2 million parameters, 45 MB a message.
    """

    def __init__(self, channels: int, num_classes: int, width: int) -> None:
        """Make the layers with weights from torch's global generator.

        The first stage has the width; each of the three others doubles it.
        """
        super().__init__()
        self.stem = _convolution(channels, width, stride=1)
        self.stem_norm = _norm(width)
        self.activation = nn.ReLU()
        blocks, channels_in = [], width
        for stage in range(4):
            for number in range(_BLOCKS_PER_STAGE):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(_ResidualBlock(channels_in, width * 2**stage, stride=stride))
                channels_in = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width * 8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(n, num_classes)`."""
        hidden = self.blocks(self.activation(self.stem_norm(self.stem(images))))
        logits: Tensor = self.head(hidden.mean(dim=(2, 3)))
        return logits


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside the identity, or beside a 1x1 convolution where shapes change."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(channels_in, channels_out, stride=stride)
        self.norm1 = _norm(channels_out)
        self.activation1 = nn.ReLU()
        self.conv2 = _convolution(channels_out, channels_out, stride=1)
        self.norm2 = _norm(channels_out)
        self.activation2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(
                _convolution(channels_in, channels_out, stride=stride, kernel_size=1),
                _norm(channels_out),
            )

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.activation1(self.norm1(self.conv1(images)))
        summed = self.norm2(self.conv2(hidden)) + self.shortcut(images)
        activated: Tensor = self.activation2(summed)
        return activated


def _convolution(
    channels_in: int, channels_out: int, *, stride: int, kernel_size: int = 3
) -> nn.Conv2d:
    convolution = nn.Conv2d(
        channels_in,
        channels_out,
        kernel_size,
        stride=stride,
        padding=kernel_size // 2,
        bias=False,  # the norm after it has one
    )
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


def _norm(channels: int) -> nn.GroupNorm:
    # An 8x8 image is one pixel in the last stage: a group of one channel would be all zeros, a
    # group of two hardly more than a sign.
    groups = 1
    for number in range(2, _MOST_GROUPS + 1):
        if channels % number == 0 and channels >= _CHANNELS_PER_GROUP * number:
            groups = number
    return nn.GroupNorm(groups, channels)
