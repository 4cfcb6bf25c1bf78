"""Compression at the client: the last step before an update leaves."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fl_dp.updates import only_array_record
from fl_dp.updates.compression import ENCODED_UPDATE
from fl_dp.updates.narrow import widen

from .records import instruction_of, only_record


def compression_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Widen a message's model, and encode the update in the reply as the instruction says.

    It works before any handler that replies with one ArrayRecord, the trained model under the
    message's names:

        >>> app = ClientApp(mods=[compression_mod])

    Put it first, to encode after all noise. `numpy_client_app` and `noised_client_app` have it
    built in. Integer and boolean arrays do not travel back; a reply's other records do. Without a
    compression in the instruction the reply passes.

    Raises:
        ValueError: The model can't be read, the instruction asks to encode a sum in grid steps,
            which has to stay exact, or the update is not finite.
        RefusedUpdate: The reply has not exactly one ArrayRecord, or not the model's.
    """
    for key, model in list(message.content.array_records.items()):
        message.content[key] = widen(model)
    instruction = instruction_of(message)
    if instruction is None or not instruction.encoding.encodes:
        return call_next(message, context)
    if instruction.sums_units:
        raise ValueError("a sum of units has to stay exact: send units or a compression, not both")
    _, model = only_record(message.content.array_records, "ArrayRecord")
    layout = instruction.layout_of(model)
    origin = layout.flatten(model)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    update = layout.flatten(only_array_record(reply.content)) - origin
    # The update is private already, so this randomness need not be secure.
    encoded = instruction.encoding.encode(update, np.random.default_rng())
    content = RecordDict({ENCODED_UPDATE: encoded})
    for key, record in reply.content.items():
        if not isinstance(record, ArrayRecord):
            content[key] = record
    return Message(content, reply_to=message)
