"""Sheets of images and words by Pillow: a stream, its views, and a learner's tasks."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from distillmatch.errors import ConfigError
from distillmatch.files import write_atomically
from distillmatch.randomness import shuffled
from distillmatch.sources.dataset import UNKNOWN, Dataset
from distillmatch.streams import Stream

Color = tuple[int, int, int]
Pixels = NDArray[np.uint8]

INK: Color = (33, 37, 41)
MUTED: Color = (108, 117, 125)
PAPER: Color = (255, 255, 255)
RULE: Color = (225, 228, 232)
# Colors that stay apart for color-blind readers (after Okabe and Ito).
PAST: Color = (0, 114, 178)
PRESENT: Color = (213, 94, 0)
FUTURE: Color = (150, 150, 150)
DISTRACTOR: Color = (204, 121, 167)
MARGIN, GAP, SIDE = 20, 8, 44
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".pdf")
EXAMPLES, IN_A_ROW = 8, 5
VIEWS, VIEWED, TILE = 4, 6, 72
"""Weak and strong views of each image, images, and the least side of one in pixels."""


class Sheet:
    """A white page of columns; what is drawn comes below what was drawn before."""

    def __init__(self, width: int, columns: int = 1) -> None:
        self.width = width
        self.page = Image.new("RGB", (MARGIN + columns * (width + MARGIN), 2000), PAPER)
        self.pen = ImageDraw.Draw(self.page)
        self.x = self.y = self.bottom = MARGIN

    def words(self, *parts: tuple[str, Color] | str, size: int = 13) -> None:
        """Write a line of text, whose parts may have colors, cut where the column ends."""
        x, y = float(self.x), self._place(size + 9)
        for part in parts:
            text, color = (part, INK) if isinstance(part, str) else part
            said = shortened(text, self.x + self.width - x, size)
            self.pen.text((x, y), said, fill=color, font=_font(size))
            x += _font(size).getlength(said) + 14

    def images(
        self,
        images: Sequence[Pixels],
        colors: Sequence[Color],
        captions: Sequence[str] = (),
        side: int = SIDE,
        step: int = SIDE + GAP,
    ) -> None:
        """Draw images in rows, enlarged, each in a frame of its color, captions below them."""
        a_row = self.width // step
        for number, (image, color) in enumerate(zip(images, colors, strict=True)):
            if number % a_row == 0:
                top = self._place(side + GAP + (20 if captions else 0)) + 2
            left = self.x + number % a_row * step + 2
            drawn = Image.fromarray(np.ascontiguousarray(image))
            self.pen.rectangle((left - 2, top - 2, left + side + 1, top + side + 1), color)
            self.page.paste(drawn.resize((side, side), Image.Resampling.NEAREST), (left, top))
            below = shortened(captions[number], step - 4, 11) if captions else ""
            self.pen.text((left, top + side + 3), below, fill=MUTED, font=_font(11))

    def bar(self, name: str, share: float | None, color: Color) -> None:
        """Draw a share in percent as a bar beside its name; None where there is none yet."""
        y, left, room = self._place(28), self.x + 50, self.width - 106
        self.pen.text((self.x, y), name, fill=INK, font=_font(13))
        if share is None:
            self.pen.text((left, y), "none yet", fill=FUTURE, font=_font(13))
            return
        self.pen.rectangle((left, y + 1, left + room, y + 15), RULE)
        self.pen.rectangle((left, y + 1, left + room * share / 100, y + 15), color)
        self.pen.text((left + room + 8, y), f"{share:.0f} %", fill=INK, font=_font(13))

    def line(self) -> None:
        """Draw a thin line across the column."""
        y = self._place(2 * GAP) + GAP
        self.pen.line([(self.x, y), (self.x + self.width, y)], fill=RULE)

    def next_column(self) -> None:
        """Go on at the top of the next column."""
        self.x, self.y = self.x + self.width + MARGIN, MARGIN

    def save(self, path: Path) -> None:
        """Write the page in the format that the file's name ends in."""
        check_picture_name(path)
        buffer, page = BytesIO(), self.page.crop((0, 0, self.page.width, self.bottom + MARGIN))
        page.save(buffer, format=Image.registered_extensions()[path.suffix.lower()])
        write_atomically(path, buffer.getvalue(), "writing the picture")

    def _place(self, height: int) -> int:
        """Return where something of a height begins; the page grows as needed."""
        top, self.y = self.y, self.y + height
        self.bottom = max(self.bottom, self.y)
        if self.bottom > self.page.height - MARGIN:
            grown = Image.new("RGB", (self.page.width, 2 * self.bottom), PAPER)
            grown.paste(self.page)
            self.page, self.pen = grown, ImageDraw.Draw(grown)
        return top


def check_picture_name(path: Path, endings: Sequence[str] = ENDINGS) -> None:
    """Refuse a file name that does not end like a picture, before any work is done."""
    if path.suffix.lower() not in endings:
        raise ConfigError(
            f"{path}: a picture's name must end in one of {', '.join(endings)}, "
            f"not {path.suffix or 'nothing'!r}"
        )
    Image.init()


def shortened(text: str, width: float, size: int) -> str:
    """Cut text with an ellipsis so that it is at most `width` pixels wide."""
    if _font(size).getlength(text) <= width:
        return text
    while text and _font(size).getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def draw_stream(dataset: Dataset, stream: Stream, path: Path) -> None:
    """Draw labeled above unlabeled images of each task, and below the tasks the class tree."""
    sheet, config, train = Sheet(EXAMPLES * (SIDE + GAP)), stream.config, dataset.train
    legend = [("past", PAST), ("present", PRESENT), ("future classes", FUTURE)]
    if config.distractors:
        legend.append(("distractors", DISTRACTOR))
    if UNKNOWN in train.labels:
        legend.append(("no class", INK))
    sheet.words(f"{dataset.name}: {len(stream)} tasks", size=20)
    about = f"order {config.order}, unlabeled {config.unlabeled}, seed {config.seed}"
    sheet.words((about, MUTED))
    sheet.words(*legend)
    sheet.words(("upper row: labeled, lower row: unlabeled", MUTED))
    last, learned = 0, [dataset.class_names[c] for c in stream.class_order]
    for number, task in enumerate(stream.tasks, 1):
        first, last = last, last + len(task.classes)
        given = f"{len(task.labeled):,} labeled, {len(task.unlabeled):,} unlabeled"
        names = ", ".join(dataset.class_names[c] for c in task.classes)
        sheet.line()
        sheet.words(f"task {number}: {given} of {len(task.unlabeled_classes)} classes", size=14)
        sheet.words((f"{len(task.classes)} classes: {names}", MUTED), size=12)
        if returning := stream.returning(number - 1):
            names = ", ".join(learned[slot] for slot in returning)
            sheet.words((f"{len(returning)} come back: {names}", MUTED), size=12)
        for images in (task.labeled, task.unlabeled):
            # Images spread over the classes in learning order, so that all kinds are shown.
            places = stream.slots(train.labels[images])
            order, count = np.argsort(places, kind="stable"), min(EXAMPLES, len(images))
            chosen = [order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)]
            colors = [color_of_class(int(places[i]), first, last, len(learned)) for i in chosen]
            sheet.images([train.images[images[i]] for i in chosen], colors)
    if dataset.tree is not None:
        sheet.line()
        sheet.words("The tree: super-class, parent, classes", size=16)
        for number, name in enumerate(dataset.tree.super_class_names):
            for parent in dataset.tree.parents_of_super_class(number):
                classes = dataset.tree.classes_of_parent(parent)
                sheet.words(f"{name} › {dataset.tree.parent_names[parent]}")
                captions = [dataset.class_names[c] for c in classes]
                frames, step = [RULE] * len(classes), sheet.width // IN_A_ROW
                sheet.images(_first_of(classes, dataset), frames, captions, step=step)
    sheet.save(path)


def color_of_class(place: int, first: int, last: int, learned: int) -> Color:
    """Return the color of a class by its place in the learning order of so many classes."""
    if place == UNKNOWN:
        return INK
    if place >= learned:
        return DISTRACTOR
    return PAST if place < first else PRESENT if place < last else FUTURE


def draw_views_of(dataset: Dataset, seed: int, path: Path) -> None:
    """Draw weak and strong views of a few images, and what each operation does to the first."""
    import torch  # noqa: PLC0415  streams are drawn without it

    from distillmatch import views  # noqa: PLC0415

    normalization = views.Normalization.of(dataset.train.images)
    classes = shuffled(range(len(dataset.class_names)), seed, "sheet")[:VIEWED]
    images = np.stack(_first_of(classes, dataset))
    batch = torch.from_numpy(images)
    rows: list[list[Pixels]] = [[image] for image in images]
    for kind in (views.weak_views, views.strong_views):
        for column in range(VIEWS):
            key = views.view_key(seed, "sheet", column)
            made = kind(batch.permute(0, 3, 1, 2), key, normalization).permute(0, 2, 3, 1)
            # The normalization is undone, so that cut-outs have the mean color.
            made = made * torch.tensor(normalization.std) + torch.tensor(normalization.mean)
            pixels = (255 * made).round().clamp(0, 255).to(torch.uint8).numpy()
            for row, view in zip(rows, pixels, strict=True):
                row.append(view)
    side = images.shape[1] * max(1, round(TILE / images.shape[1]))
    sheet, step = Sheet((1 + 2 * VIEWS) * (side + GAP)), side + GAP
    sheet.words(f"Weak and strong views, seed {seed}", size=18)
    about = f"each image, {VIEWS} weak views, {VIEWS} strong ones; cut-outs are gray"
    sheet.words((about, MUTED), size=12)
    for c, row in zip(classes, rows, strict=True):
        sheet.words(dataset.class_names[c].replace("_", " "))
        sheet.images(row, [RULE] * len(row), side=side, step=step)
    sheet.line()
    sheet.words(f"The {len(views.OPERATIONS)} operations of strong views", size=18)
    about = "on the first image above; those with a range at both of its ends"
    sheet.words((about, MUTED), size=12)
    drawn, names = [], []
    for name, operation in views.OPERATIONS.items():
        for magnitude in operation.extremes() or (None,):
            drawn.append(operation.function(batch[:1], torch.tensor([magnitude or 0.0])).numpy()[0])
            ends = "" if magnitude is None else f" {magnitude:.3g}"
            names.append(name.replace("_", " ") + ends)
    sheet.images(drawn, [RULE] * len(drawn), names, side, sheet.width // 6)
    sheet.save(path)


def draw_learner(
    tasks: Sequence[tuple[Mapping[str, Any], Sequence[Pixels], Sequence[Pixels]]], path: Path
) -> None:
    """Draw tasks side by side, each a record, images of new classes, and some of the camera's."""
    sheet = Sheet(IN_A_ROW * (SIDE + GAP), len(tasks))
    for record, labeled, examples in tasks:
        test, added = record["test"] or {}, len(record["added"])
        sheet.words(str(record["name"]).capitalize(), size=18)
        classes = f"{added} new class{'es' * (added != 1)}"
        sheet.words((f"{classes}, {record['labeled']:,} labels", PRESENT))
        sheet.images(labeled[:IN_A_ROW], [PRESENT] * len(labeled[:IN_A_ROW]))
        taken = f", {record['accepted']:,} taken for known" if record["accepted"] else ""
        sheet.words((f"camera: {record['seen']:,} seen{taken}", PAST))
        sheet.images(examples[:IN_A_ROW], [PAST] * len(examples[:IN_A_ROW]))
        if not len(examples):
            none = "nothing to recognize yet" if record["number"] == 1 else "no examples"
            sheet.words((none, MUTED))
            sheet.words("", size=SIDE - 23)
        sheet.words("test accuracy")
        sheet.bar("older", test.get("old"), PAST)
        sheet.bar("new", test.get("new"), PRESENT)
        sheet.next_column()
    sheet.save(path)


def _first_of(classes: Sequence[int], dataset: Dataset) -> list[Pixels]:
    """Return the first training image of each class."""
    labels, images = dataset.train.labels, dataset.train.images
    return [np.asarray(images[int(np.flatnonzero(labels == c)[0])]) for c in classes]


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
