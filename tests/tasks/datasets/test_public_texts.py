"""Public texts, on a few in their files' own format, and what carries and compares texts."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.held_out import with_public_part
from fl_dp.tasks.datasets.near_copies import near_copies
from fl_dp.tasks.datasets.public_texts import load_movies, load_spam, mail_of
from fl_dp.tasks.datasets.text_bytes import padded, texts_of

LIST_MAIL = b"""From zzzz Thu Aug 22 2002
To: "Friends" <Talk@Example.org>
Subject: Re: tea
List-Id: Talk about tea
\t<talk.example.org>

I like <b>green</b>   tea,
na\xefve as I am
"""
LETTERS = "abcdefghijkl"
OTHER_MAIL = b"To: you\nSubject: Win\r\n\r\n<p>A\nprize</p>"


def published(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path) -> None:
    """Take a folder's files for the published ones, in their source's order."""
    names = sources.SOURCES[name].md5
    made = {file: hashlib.md5((folder / file).read_bytes()).hexdigest() for file in names}
    monkeypatch.setitem(sources.SOURCES, name, replace(sources.SOURCES[name], md5=made))


def test_a_mail_is_its_subject_and_body_at_its_list_or_mailbox() -> None:
    mail = mail_of(LIST_MAIL, is_spam=False)
    assert mail.receiver == "talk.example.org"
    assert mail.text == "Re: tea I like green tea, na\u00efve as I am"  # read as Latin-1
    assert mail_of(OTHER_MAIL, is_spam=True) == ("unknown", "Win A prize", True)
    without_list = LIST_MAIL.replace(b"List-Id", b"X-List")
    assert mail_of(without_list, is_spam=False).receiver == "talk@example.org"


def test_spam_trains_on_no_copy_of_a_test_mail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of each kind ten mails, the first five with the same words.
    words = {
        (kind, number): " ".join(f"{kind}{letter}{chr(97 + max(number, 4))}" for letter in LETTERS)
        for kind in ("ham", "spam")
        for number in range(10)
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for (kind, number), text in words.items():
            raw = f"To: a{number % 2}@b.c\nSubject: {number}\n\n{text}".encode()
            for suffix in ("txt", "json"):
                entry = tarfile.TarInfo(f"package/data/{kind}-1/{number}.{suffix}")
                entry.size = len(raw)
                tar.addfile(entry, io.BytesIO(raw))
    [name] = sources.SOURCES["spam"].md5
    (tmp_path / name).write_bytes(archive.getvalue())
    published(monkeypatch, "spam", tmp_path)
    spam = load_spam(str(tmp_path))
    assert spam.form == sources.SOURCES["spam"].form
    assert len(spam.test_y) == 4
    assert spam.client_names == ("a0@b.c", "a1@b.c")
    assert spam.train_clients is not None and len(spam.train_clients) == len(spam.train_y)
    train, test = (
        [text.partition(" ")[2] for text in texts_of(rows)] for rows in (spam.train_x, spam.test_x)
    )
    others = [text for text in words.values() if text not in test]
    assert sorted(train) == sorted(others)
    assert len(others) < 16  # a copy was left out


@pytest.mark.parametrize(
    ("text", "is_copy"),
    [
        ("Please, buy our GREEN tea at 9 pence today!", True),
        ("please buy our green tea at pence tomorrow", True),  # three runs of four
        ("please buy our green tea at home now", False),  # two of four
        ("please buy our", False),
        ("", False),
    ],
)
def test_a_copy_has_most_runs_of_words_in_the_others(text: str, is_copy: bool) -> None:
    others = ["what is this", "please buy our green tea at 7 pence today"]
    assert near_copies([text, "no"], others).tolist() == [is_copy, False]
    assert near_copies(["What is 1 this?"], others).tolist() == [True]


def test_movies_have_classes_by_rating_and_other_sentences_in_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [*sources.SOURCES["movies"].md5]
    rows = [f"{number}\t{rating}\tfilm {number}" for number, rating in enumerate([0.1, 0, -1] * 5)]
    (tmp_path / files[0]).write_bytes("\r\n".join(rows).encode())
    for file in files[1:]:
        (tmp_path / file).write_text(f"1_1\t4\t{file}\n")
    published(monkeypatch, "movies", tmp_path)
    movies = load_movies(str(tmp_path))
    assert movies.form == sources.SOURCES["movies"].form
    read = dict(zip(texts_of(movies.train_x), movies.train_y, strict=True))
    read |= dict(zip(texts_of(movies.test_x), movies.test_y, strict=True))
    assert read == {f"film {number}": int(number % 3 == 0) for number in range(15)}
    assert movies.public_x is not None and texts_of(movies.public_x) == files[1:]
    # Its own records are used as public ones, and the training part stays whole.
    chosen = with_public_part(movies, 2)
    assert chosen.public_x is not None and texts_of(chosen.public_x) == files[1:3]
    assert chosen.train_y is movies.train_y
    with pytest.raises(ValueError, match="brings 3 public records: write at most that"):
        with_public_part(movies, 4)


def test_a_text_is_cut_at_a_whole_character_and_comes_back_from_any_number() -> None:
    rows = padded(["na\u00efve", "a\0b", ""], 3)
    assert rows.tolist() == [[110, 97, 0], [97, 32, 98], [0, 0, 0]]
    for kind in (np.uint8, np.int64, np.float32):
        assert texts_of(rows.astype(kind)) == ["na", "a b", ""]
