"""Public texts, each record a text as `text_bytes.padded` carries it; `features=words` encodes it.

Spam: mails of SpamAssassin's public corpus of 2002 and 2003; is one unwanted? Movies (Hutto and
Gilbert 2014): sentences of film reviews; did twenty readers find one rather good? Their sentences
on goods, from editorials and of tweets are the public part.
"""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.forms import BYTES
from fl_dp.tasks.datasets.held_out import of_training_rows, with_test_part
from fl_dp.tasks.datasets.names import numbered
from fl_dp.tasks.datasets.near_copies import near_copies
from fl_dp.tasks.datasets.sources import SOURCES
from fl_dp.tasks.datasets.text_bytes import padded, texts_of

_MAIL = re.compile(r"package/data/[^/]+/[^/]+\.txt")
_GOES_ON = re.compile(r"\n[ \t]+")  # a header of several lines
_TAG = re.compile(r"<[^<>]*>")
_ADDRESS = re.compile(r"[\w.+-]+@[\w.-]+")


class Mail(NamedTuple):
    """A mail: its list, or the mailbox that got it; subject and body; and whether it is spam."""

    receiver: str
    text: str
    is_spam: bool


def load_spam(data_dir: str | None = None) -> Dataset:
    """Load the mails, each list or mailbox a client: uint8 bytes `(n, 2048)`; label 1 is spam.

    Training mails that nearly copy a test mail are left out.
    """
    (archive,) = sources.published_files("spam", sources.require_folder("spam", data_dir)).values()
    mails = mails_of(archive)
    whole = with_test_part(
        "spam",
        padded([mail.text for mail in mails], *SOURCES["spam"].form.input_shape),
        np.array([mail.is_spam for mail in mails], dtype=np.int64),
        num_classes=2,
        clients=numbered([mail.receiver for mail in mails]),
    )
    copies = near_copies(texts_of(whole.train_x), texts_of(whole.test_x))
    distinct = of_training_rows(whole, np.flatnonzero(~copies))
    return replace(distinct, vocabulary_size=BYTES, class_names=("ham", "spam"))


def mails_of(archive: bytes) -> list[Mail]:
    """Read the mails of the package's archive, in the order of their names."""
    raw = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if _MAIL.fullmatch(entry.name) else None
            if content is not None:
                raw[entry.name] = content.read()
    return [mail_of(raw[name], is_spam="/spam-" in name) for name in sorted(raw)]


def mail_of(raw: bytes, *, is_spam: bool) -> Mail:
    """Read one mail, UTF-8 or else Latin-1, without tags and further blanks."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    headers: dict[str, str] = {}
    for line in _GOES_ON.sub(" ", head).split("\n"):
        key, _, value = line.partition(":")
        headers.setdefault(key.lower(), value.strip())
    receiver = headers.get("list-id", "").rpartition("<")[2].rstrip("> ").lower()
    if not receiver:
        address = _ADDRESS.search(headers.get("to", ""))
        receiver = "unknown" if address is None else address.group().lower()
    words = f"{headers.get('subject', '')} {_TAG.sub(' ', body)}".split()
    return Mail(receiver, " ".join(words), is_spam)


def load_movies(data_dir: str | None = None) -> Dataset:
    """Load the sentences: uint8 bytes `(n, 256)`; label 1 has a mean rating above zero."""
    files = sources.published_files("movies", sources.require_folder("movies", data_dir))
    (texts, ratings), *others = (rated_sentences(raw.decode()) for raw in files.values())
    length = SOURCES["movies"].form.input_shape
    whole = with_test_part(
        "movies",
        padded(texts, *length),
        (np.array(ratings) > 0.0).astype(np.int64),
        num_classes=2,
    )
    public = padded([text for texts, _ in others for text in texts], *length)
    return replace(whole, vocabulary_size=BYTES, class_names=("bad", "good"), public_x=public)


def rated_sentences(text: str) -> tuple[list[str], list[float]]:
    """Read a file's sentences and their mean ratings in [-4, 4]; a row is number, rating, text."""
    rows = [line.split("\t") for line in text.splitlines() if line.strip()]
    return [sentence for _, _, sentence in rows], [float(rating) for _, rating, _ in rows]
