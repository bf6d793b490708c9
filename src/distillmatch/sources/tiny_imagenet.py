"""Tiny-ImageNet-200: 64 x 64, 200 classes, 500 training images each, tested on its val split.

Read from the extracted folder, and decoded into the cache when the folder has changed.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from distillmatch.config import StreamConfig
from distillmatch.errors import SourceError, first_of
from distillmatch.files import read_text
from distillmatch.sources.cache import Plan, cache_key, find_published, load_cached
from distillmatch.sources.dataset import Dataset
from distillmatch.sources.registry import CheckedSource
from distillmatch.sources.walk import list_files, name_below, shown

FOLDER = "tiny-imagenet-200"
SIDE = 64
_ANNOTATIONS = "val/val_annotations.txt"


def _load(config: StreamConfig) -> Dataset:
    """Load Tiny-ImageNet-200 from the configured folder, or from the cache."""
    side, root = config.image_size or SIDE, _locate(config)
    listing = list_files(root)
    if listing.problems:
        raise SourceError(listing.problems[0])
    dataset = load_cached(
        config,
        f"{FOLDER}-{cache_key(str(root.resolve()), side)}",
        cache_key(side, listing.stamp),
        side,
        partial(_plan, {name_below(root, path): path for path in listing.files}),
        "decoding Tiny-ImageNet-200 into the cache",
    )
    if dataset.problems:
        raise SourceError(first_of(dataset.problems))
    return dataset


def _locate(config: StreamConfig) -> Path:
    """Return the folder that holds wnids.txt."""
    given, found = find_published(config, FOLDER, ["wnids.txt"])
    if found is None:
        hint = "unpack it there" if config.data_dir else "unpack it there, or give --data-dir"
        raise SourceError(f"{given}: expected the folder {FOLDER} here, found none; {hint}")
    return found


load = CheckedSource(_load, _locate)


def _place(files: Mapping[str, str], name: str, listed_in: str = "the published files") -> str:
    """Return the path of a listed file, or raise if it is missing."""
    if name in files:
        return files[name]
    raise SourceError(f"{name}: expected this file, which {listed_in} list, found nothing")


def _lines(files: Mapping[str, str], name: str) -> list[str]:
    """Return the lines of a text file that are not empty."""
    path = _place(files, name)
    try:
        return [line for line in read_text(Path(path)).splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise SourceError(f"{shown(path)}: expected a text file in UTF-8") from None


def _plan(files: Mapping[str, str]) -> Plan:
    wnids = [line.strip() for line in _lines(files, "wnids.txt")]
    if not wnids or len({*wnids}) < len(wnids):
        raise SourceError("wnids.txt: expected one class a line, found none, or one twice")
    train, test = _train(files, wnids), _test(files, wnids)
    return Plan("tiny-imagenet", [*train, *test], len(train), _class_names(files, wnids))


def _train(files: Mapping[str, str], wnids: list[str]) -> list[tuple[str, int]]:
    """List train/<wnid>/images."""
    of_class = defaultdict(list)
    for name in sorted(files):
        if name.startswith("train/") and name.lower().endswith((".jpeg", ".jpg")):
            of_class[name.split("/")[1]].append(files[name])
    for wnid in wnids:
        if not of_class[wnid]:
            raise SourceError(f"train/{wnid}/images: expected the training images, found none")
    return [(path, label) for label, wnid in enumerate(wnids) for path in of_class[wnid]]


def _test(files: Mapping[str, str], wnids: list[str]) -> list[tuple[str, int]]:
    """List val/images with the classes that val_annotations.txt gives."""
    label_of, found = {wnid: label for label, wnid in enumerate(wnids)}, []
    for number, line in enumerate(_lines(files, _ANNOTATIONS), start=1):
        image, wnid, *_ = [*line.split(), "", ""]
        if wnid not in label_of:
            raise SourceError(
                f"{_ANNOTATIONS}, line {number}: expected an image and a class of wnids.txt, "
                f"found '{line}'"
            )
        found.append((_place(files, f"val/images/{image}", "the annotations"), label_of[wnid]))
    if not found:
        raise SourceError(f"{_ANNOTATIONS}: expected the test images, found none")
    return found


def _class_names(files: Mapping[str, str], wnids: list[str]) -> tuple[str, ...]:
    """Return each class's first word, with its wnid where two classes share it."""
    pairs = (line.partition("\t") for line in _lines(files, "words.txt"))
    words = {wnid: synonyms.split(",")[0].strip() for wnid, _, synonyms in pairs}
    names = [words.get(wnid) or wnid for wnid in wnids]
    uses = Counter(names)
    pairs_of_names = zip(names, wnids, strict=True)
    return tuple(f"{name} ({wnid})" if uses[name] > 1 else name for name, wnid in pairs_of_names)
