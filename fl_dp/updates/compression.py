"""Fewer bytes on the wire: updates are encoded on their way up, models narrowed on their way down.

    >>> compression = Compression(up="quantize", bits=4)
    >>> sent = compression.encode(update, np.random.default_rng())  # at the client, noise and all
    >>> received = compression.decode(sent, update.size)  # at the server, before it is clipped

Privacy: none of its own, and none lost. An update is encoded after the noise that a client adds, or
decoded before the server clips it and adds noise, so either way the encoding is post-processing or
part of what a client may do anyway. The same holds for a model, which is released before it is
narrowed. That is why the rounding may use NumPy's randomness: no privacy rests on it.

Every encoding has a length that depends on the vector's length and the settings alone. The decoder
goes by what it asked for, never by what a reply claims: anything else is refused before it is
unpacked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from .arrays import ArrayForm, form_of, read
from .compression_options import NARROW_FORMATS, CompressionOptions
from .layout import RefusedUpdate, VectorLayout, only_array_record
from .narrow import narrow, narrow_form, narrow_values
from .quantization import (
    LARGEST,
    Quantized,
    codes_shape,
    dequantize,
    quantize,
    scales_shape,
)

ENCODED_UPDATE = "fl-dp-encoded-update"
"""Name of a reply's only ArrayRecord if that holds an encoded update instead of a model."""

_NPY_HEADER = 128  # bytes before the items of an array's .npy file


@dataclass(frozen=True, kw_only=True)
class Compression(CompressionOptions):
    """Encoding of updates to the server and of models to the clients, by `CompressionOptions`."""

    def encode(self, update: NDArray[np.float64], rng: np.random.Generator) -> ArrayRecord:
        """Encode an update.

        Args:
            update: The whole update, shape `(size,)`.
            rng: For the rounding of `quantize` and `top_k`.

        Returns:
            What `decode` reads; its size does not depend on the numbers.

        Raises:
            ValueError: If `up` is `none`, or an entry is not finite or beyond 1e300.
        """
        if not (np.abs(update) <= LARGEST).all():
            raise ValueError("an update that is not finite can't be encoded")
        if self.up in NARROW_FORMATS:
            return ArrayRecord({"values": narrow_values(update, self.up)})
        if self.up == "quantize":
            return ArrayRecord(self._levels(update, rng))
        if self.up == "top_k":
            places = _largest(update, self._kept(update.size))
            listed = Array(_written_places(places, update.size))
            return ArrayRecord({"places": listed} | self._levels(update[places], rng))
        raise ValueError("updates are not encoded under up='none': send the model")

    def decode(self, encoded: ArrayRecord, size: int) -> NDArray[np.float64]:
        """Return the update that a client encoded, float64 of shape `(size,)`.

        It may be anything but malformed: a float16 can be infinite.

        Raises:
            RefusedUpdate: If it is not what `encode` makes of a vector of this size.
        """
        if self.up == "none":
            raise RefusedUpdate("it is encoded, and nobody asked for that")
        forms = self._forms(size)
        if set(encoded.keys()) != set(forms):
            raise RefusedUpdate("it is not encoded as it was asked for")
        items = {name: _items(encoded, name, form) for name, form in forms.items()}
        if self.up in NARROW_FORMATS:
            return items["values"].astype(np.float64)
        kept = self._kept(size)
        try:
            numbers = dequantize(Quantized(items["scales"], items["codes"]), kept, self.bits)
        except ValueError as error:
            raise RefusedUpdate(str(error)) from None
        if self.up == "quantize":
            return numbers
        update = np.zeros(size)
        update[_read_places(items["places"], kept, size)] = numbers
        return update

    def narrow(self, model: ArrayRecord) -> ArrayRecord:
        """Return the model as it is sent; `widen` is its inverse but for the rounding."""
        return model if self.down == "none" else narrow(model, self.down)

    def reply_bytes(self, model: ArrayRecord, layout: VectorLayout) -> int:
        """Return how many bytes the arrays of a client's reply to this model have.

        Public: it depends on shapes and settings alone.
        """
        if self.up == "none":
            return array_bytes(model)
        return sum(map(_file_bytes, self._forms(layout.size).values()))

    def _forms(self, size: int) -> dict[str, ArrayForm]:
        """Return the form of each array that `encode` makes of `size` coordinates."""
        if self.up in NARROW_FORMATS:
            return {"values": narrow_form(self.up, (size,))}
        kept = self._kept(size)
        levels = {
            "scales": form_of("<f8", scales_shape(kept)),
            "codes": form_of("u1", codes_shape(kept, self.bits)),
        }
        return levels if self.up == "quantize" else {"places": _places_form(kept, size)} | levels

    def _kept(self, size: int) -> int:
        """Return the number of coordinates that are sent, of `size`."""
        return min(math.ceil(self.fraction * size), size) if self.up == "top_k" else size

    def _levels(self, values: NDArray[np.float64], rng: np.random.Generator) -> dict[str, Array]:
        quantized = quantize(values, self.bits, rng)
        return {
            "scales": Array(quantized.scales.astype("<f8")),
            "codes": Array(quantized.codes),
        }


def update_in(
    content: RecordDict, compression: Compression | None, size: int
) -> ArrayRecord | NDArray[np.float64]:
    """Return what a reply holds: a model, or the update of `size` coordinates that it encodes.

    A client that knows nothing of encodings answers with its model and is read as ever.

    Raises:
        RefusedUpdate: If it has not exactly one ArrayRecord, or one that can't be decoded.
    """
    record = only_array_record(content)
    if ENCODED_UPDATE not in content.array_records:
        return record
    return (compression or Compression()).decode(record, size)


def sum_bytes(layout: VectorLayout) -> int:
    """Return how many bytes the arrays of a node's own sum have, which is in float64."""
    return sum(_file_bytes(spec.form) for spec in layout.in_float64().released)


def array_bytes(arrays: ArrayRecord) -> int:
    """Return how many bytes the arrays of a record have, with the headers of their .npy files."""
    return sum(len(array.data) for array in arrays.values())


def _largest(update: NDArray[np.float64], kept: int) -> NDArray[np.int64]:
    """Return the places of the largest magnitudes, ascending."""
    if kept == update.size:
        return np.arange(kept)
    # Argpartition leaves them in an order that depends on the magnitudes; ascending, they say less.
    return np.sort(np.argpartition(np.abs(update), update.size - kept)[update.size - kept :])


def _places_form(kept: int, size: int) -> ArrayForm:
    """Return how places are written: one bit a coordinate, or one number for each that is kept."""
    number = np.dtype("<u4" if size <= 1 << 32 else "<u8")
    bitmap = math.ceil(size / 8)
    # The shorter of the two; both ends compute the choice, so that it need not travel.
    in_bits = bitmap <= number.itemsize * kept
    return form_of("u1", (bitmap,)) if in_bits else form_of(number, (kept,))


def _written_places(places: NDArray[np.int64], size: int) -> NDArray[np.unsignedinteger]:
    form = _places_form(places.size, size)
    if form.stored != np.uint8:
        return places.astype(form.stored)
    bitmap = np.zeros(size, dtype=np.bool_)
    bitmap[places] = True
    return np.packbits(bitmap)


def _read_places(written: NDArray[Any], kept: int, size: int) -> NDArray[np.int64]:
    """Return the places of the numbers that were sent, ascending.

    Raises:
        RefusedUpdate: If they are not `kept` different places of the vector.
    """
    if written.dtype == np.uint8:
        places = np.flatnonzero(np.unpackbits(written, count=size))
        if places.size != kept:
            raise RefusedUpdate("it has not as many coordinates as it was asked for")
        return places
    if not ((written[1:] > written[:-1]).all() and (written < size).all()):
        raise RefusedUpdate("its coordinates are no different places of the vector in order")
    return written.astype(np.int64)


def _items(encoded: ArrayRecord, name: str, wanted: ArrayForm) -> NDArray[Any]:
    """Return the numbers of one array.

    Raises:
        RefusedUpdate: If it is not of the form that `encode` writes, or can't be read.
    """
    try:
        form, values = read(encoded[name])
    except Exception:  # whatever a hostile header makes NumPy raise
        raise RefusedUpdate(f"its {name} can't be read") from None
    if form != wanted:
        raise RefusedUpdate(f"its {name} are not as long or not of the kind that was asked for")
    return values


def _file_bytes(form: ArrayForm) -> int:
    return _NPY_HEADER + form.stored.itemsize * math.prod(form.shape)
