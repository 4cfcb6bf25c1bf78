"""Fewer bytes on the wire: updates encoded on their way up, models narrowed on their way down.

    >>> compression = Compression(up="quantize", bits=4)
    >>> sent = compression.encode(update, np.random.default_rng())  # at the client, noise and all
    >>> received = compression.decode(sent, update.size)  # at the server, before it is clipped

Privacy: none of its own, and none lost. An update is encoded after the noise that a client adds,
or decoded before the server clips it and adds noise. Either way the encoding is post-processing,
or part of what a client may do anyway. The same holds for a model, which is released before it is
narrowed. So the rounding may use NumPy's randomness: no privacy rests on it.

An encoding's length depends on the vector's length and the settings alone. The decoder uses the
form that it asked for, never a reply's claim: all else is refused before it is unpacked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from .arrays import ArrayForm, array_bytes, array_form, read
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


@dataclass(frozen=True, kw_only=True)
class Compression(CompressionOptions):
    """Encoding of updates to the server and of models to the clients, by `CompressionOptions`."""

    def encode(self, update: NDArray[np.float64], rng: np.random.Generator) -> ArrayRecord:
        """Encode an update for `decode`; the record's size does not depend on the numbers.

        Raises:
            ValueError: `up` is `none`, or an entry is not finite or beyond 1e300.
        """
        if not (np.abs(update) <= LARGEST).all():
            raise ValueError("an update that is not finite can't be encoded")
        if self.up in NARROW_FORMATS:
            return ArrayRecord({"values": narrow_values(update, self.up)})
        if self.up == "quantize":
            return ArrayRecord(self._levels(update, rng))
        if self.up == "top_k":
            indices = _largest(update, self._sent_count(update.size))
            encoded = Array(_encoded_indices(indices, update.size))
            return ArrayRecord({"places": encoded} | self._levels(update[indices], rng))
        raise ValueError("updates are not encoded under up='none': send the model")

    def decode(self, encoded: ArrayRecord, size: int) -> NDArray[np.float64]:
        """The update that a client encoded, float64 of shape `(size,)`.

        It may hold any number, even an infinite float16.

        Raises:
            RefusedUpdate: It is no encoding of a vector of this size.
        """
        if self.up == "none":
            raise RefusedUpdate("it is encoded, and nobody asked for that")
        forms = self._forms(size)
        if set(encoded.keys()) != set(forms):
            raise RefusedUpdate("it is not encoded as it was asked for")
        items = {name: _items(encoded, name, form) for name, form in forms.items()}
        if self.up in NARROW_FORMATS:
            return items["values"].astype(np.float64)
        count = self._sent_count(size)
        try:
            numbers = dequantize(Quantized(items["scales"], items["codes"]), count, self.bits)
        except ValueError as error:
            raise RefusedUpdate(str(error)) from None
        if self.up == "quantize":
            return numbers
        update = np.zeros(size)
        update[_decoded_indices(items["places"], count, size)] = numbers
        return update

    def update_in(self, content: RecordDict, size: int) -> ArrayRecord | NDArray[np.float64]:
        """The content of a reply: a model, or the update of `size` coordinates that it encodes.

        A client without encodings answers with its model.

        Raises:
            RefusedUpdate: It has not exactly one ArrayRecord, or that can't be decoded.
        """
        record = only_array_record(content)
        return self.decode(record, size) if ENCODED_UPDATE in content.array_records else record

    def narrow(self, model: ArrayRecord) -> ArrayRecord:
        """The model as it is sent; `widen` is its inverse but for the rounding."""
        return model if self.down == "none" else narrow(model, self.down)

    def reply_bytes(self, model: ArrayRecord, layout: VectorLayout) -> int:
        """Bytes of the arrays in a client's reply to this model.

        Public: it depends on shapes and settings alone.
        """
        if not self.encodes:
            return array_bytes(model)
        return sum(form.file_bytes for form in self._forms(layout.size).values())

    def _forms(self, size: int) -> dict[str, ArrayForm]:
        """The form of each array in an encoding of `size` coordinates."""
        if self.up in NARROW_FORMATS:
            return {"values": narrow_form(self.up, (size,))}
        count = self._sent_count(size)
        levels = {
            "scales": array_form("<f8", scales_shape(count)),
            "codes": array_form("u1", codes_shape(count, self.bits)),
        }
        if self.up == "quantize":
            return levels
        return {"places": _indices_form(count, size)} | levels

    def _sent_count(self, size: int) -> int:
        """Number of coordinates sent, of `size`."""
        if self.up != "top_k":
            return size
        return min(math.ceil(self.fraction * size), size)

    def _levels(self, values: NDArray[np.float64], rng: np.random.Generator) -> dict[str, Array]:
        quantized = quantize(values, self.bits, rng)
        return {
            "scales": Array(quantized.scales.astype("<f8")),
            "codes": Array(quantized.codes),
        }


def _largest(update: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Indices of the largest magnitudes, ascending."""
    if count == update.size:
        return np.arange(count)
    # Argpartition's order depends on the magnitudes; an ascending one says less.
    return np.sort(np.argpartition(np.abs(update), update.size - count)[update.size - count :])


def _indices_form(count: int, size: int) -> ArrayForm:
    """The form of encoded indices: one bit per coordinate, or one number per index."""
    number = np.dtype("<u4" if size <= 1 << 32 else "<u8")
    bitmap = math.ceil(size / 8)
    # The shorter of the two; both ends compute the choice, so that no message has to name it.
    if bitmap <= number.itemsize * count:
        return array_form("u1", (bitmap,))
    return array_form(number, (count,))


def _encoded_indices(indices: NDArray[np.int64], size: int) -> NDArray[np.unsignedinteger]:
    form = _indices_form(indices.size, size)
    if form.stored != np.uint8:
        return indices.astype(form.stored)
    bitmap = np.zeros(size, dtype=np.bool_)
    bitmap[indices] = True
    return np.packbits(bitmap)


def _decoded_indices(encoded: NDArray[Any], count: int, size: int) -> NDArray[np.int64]:
    """Indices of the numbers that were sent, ascending.

    Raises:
        RefusedUpdate: They are not `count` different indices of the vector.
    """
    if encoded.dtype == np.uint8:
        indices = np.flatnonzero(np.unpackbits(encoded, count=size))
        if indices.size != count:
            raise RefusedUpdate("it has not as many coordinates as it was asked for")
        return indices
    if not ((encoded[1:] > encoded[:-1]).all() and (encoded < size).all()):
        raise RefusedUpdate("its coordinates are no different places of the vector in order")
    return encoded.astype(np.int64)


def _items(encoded: ArrayRecord, name: str, wanted: ArrayForm) -> NDArray[Any]:
    """The numbers of one array.

    Raises:
        RefusedUpdate: It can't be read, or has not the form that `encode` writes.
    """
    try:
        form, values = read(encoded[name])
    except Exception:  # whatever a hostile header makes NumPy raise
        raise RefusedUpdate(f"its {name} can't be read") from None
    if form != wanted:
        raise RefusedUpdate(f"its {name} are not as long or not of the kind that was asked for")
    return values
