"""Settings of what turns a record into the vector that is trained on: `features=NAME`."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.option_errors import OptionError

from .checks import absolute, at_least, told


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class FeaturesSettings:
    """Records as they are; other options turn each into a vector of norm 1, by public means alone.

    Attributes:
        name: Option of the group.
    """

    name: str = told("none")

    def check(self) -> None:
        """Check that what has no default was written.

        Raises:
            ValueError: If it was not.
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
class ScatteringSettings(FeaturesSettings):
    """Scattering coefficients of images: fixed wavelets, no training, no data.

    Attributes:
        group_norm: Number of groups of channels that are each standardised within a record; null
            standardises none.
        public: Public training records, used without labels, that no client has; their mean is
            subtracted from every vector.
        project: Number of principal directions of the public vectors to keep; null keeps whole
            vectors.
        shrink: Number of first directions to scale down to the variance of the last among them;
            null scales none.
        statistics: `features.safetensors` of another run, whose mean and directions replace a
            public part.
        digest: SHA-256 that the encoder must have, as a statement names it; null accepts any.
    """

    name: str = told("scattering")
    group_norm: int | None = told(27)
    public: int = told(0)
    project: int | None = told(None)
    shrink: int | None = told(None)
    statistics: str | None = None
    digest: str | None = told(None)

    def __post_init__(self) -> None:
        """Check the values."""
        at_least("features.public", self.public, 0)
        for key in ("group_norm", "project", "shrink"):
            at_least(f"features.{key}", getattr(self, key), 1)
        absolute("features.statistics", self.statistics)
        if self.shrink is not None and self.shrink > (self.project or 0):
            raise OptionError(
                f"features.shrink={self.shrink} is of the directions that are kept: write "
                f"features.project of at least that, got {self.project}"
            )
        if self.statistics is not None and (self.public or self.project):
            raise OptionError(
                "features.statistics is in place of features.public, features.project and "
                "features.shrink: leave these out"
            )
        if self.project and not self.public:
            raise OptionError(
                "features.project needs public records to find directions in: write "
                "features.public=10000, or features.statistics of others"
            )


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class CheckpointSettings(ScatteringSettings):
    """Outputs of an encoder of your own, from local files.

    Attributes:
        file: Absolute safetensors file with the encoder's weights; required.
        module: Function without arguments that returns the encoder, `package.module:function`;
            required.
    """

    name: str = told("checkpoint")
    group_norm: int | None = told(None)
    file: str | None = None
    module: str | None = None

    def __post_init__(self) -> None:
        """Check the values, but for what is still to come."""
        super().__post_init__()
        absolute("features.file", self.file)

    def check(self) -> None:
        """Check that file and module were written.

        Raises:
            ValueError: If one was not.
        """
        if self.file is None or ":" not in (self.module or ""):
            raise OptionError(
                "features=checkpoint needs features.file=/absolute/encoder.safetensors and "
                f"features.module=package.module:function, got {self.file} and {self.module}"
            )


@dataclass(kw_only=True, unsafe_hash=True)  # encoders are kept by them
class PatchesSettings(ScatteringSettings):
    """Comparison of an image's windows with random windows of public ones.

    Attributes:
        count: Number of public windows to compare with.
        side: Side length of a window, in pixels.
        scattering: Add scattering coefficients, with as much variance as the comparisons.
    """

    name: str = told("patches")
    group_norm: int | None = told(None)
    count: int = told(512)
    side: int = told(6)
    scattering: bool = told(False)

    def __post_init__(self) -> None:
        """Check the values, but for public records that are still to come."""
        super().__post_init__()
        at_least("features.count", self.count, 1)
        at_least("features.side", self.side, 2)

    def check(self) -> None:
        """Check that there are public records to draw windows of.

        Raises:
            ValueError: If there are not.
        """
        if not self.public and self.statistics is None:
            raise OptionError(
                "features=patches draws windows of public records: write "
                "features.public=10000, or features.statistics of another run"
            )


FEATURES: tuple[FeaturesSettings, ...] = (
    FeaturesSettings(),
    ScatteringSettings(),
    PatchesSettings(),
    CheckpointSettings(),
)
"""What `features=NAME` chooses among."""
