"""Which model fits which data, without torch: an impossible run is refused at once."""

from __future__ import annotations

from fl_dp.tasks.datasets.forms import BYTES

ON_NUMBERS = ("logistic", "mlp", "cnn", "resnet18")
ON_TOKENS = ("gru", "lstm", "transformer")
MODELS = (*ON_NUMBERS, *ON_TOKENS)

TRAINED_FACTORS = ("b", "both")
"""The factors of a low-rank update that can be trained."""

_ON_IMAGES = ("cnn", "resnet18")


def require_fit(
    name: str,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: int,
    vocabulary_size: int | None,
) -> None:
    """Check that a model can be built for some data; arguments as for `build_model`.

    Raises:
        ValueError: If it can't; the text says what to write instead.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; write one of {', '.join(MODELS)}")
    if not input_shape or min(input_shape) < 1:
        raise ValueError(
            f"input_shape is {input_shape}; write sizes of at least 1, e.g. (1, 28, 28)"
        )
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; write at least 1")
    if hidden < 1:
        raise ValueError(f"hidden is {hidden}; write at least 1")
    if name == "transformer" and hidden % 8:
        raise ValueError(f"hidden is {hidden}; the model 'transformer' needs a multiple of 8")
    if vocabulary_size is None and name in ON_TOKENS:
        raise ValueError(
            f"the model {name!r} reads tokens, and the records are numbers of shape "
            f"{input_shape}; write one of {', '.join(ON_NUMBERS)}"
        )
    if vocabulary_size is not None and name in ON_NUMBERS:
        is_text = vocabulary_size == BYTES
        raise ValueError(
            f"the model {name!r} takes numbers, and the records are "
            f"{'texts; write features=words, or' if is_text else 'tokens; write'} one of "
            f"{', '.join(ON_TOKENS)}"
        )
    if name in _ON_IMAGES and (len(input_shape) != 3 or min(input_shape[1:]) < 8):
        raise ValueError(
            f"input_shape is {input_shape}; the model {name!r} needs (channels, height, width) "
            "with sides of at least 8: write model 'mlp' for other shapes"
        )
