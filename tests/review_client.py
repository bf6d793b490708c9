"""A review of colored squares without a network, and a client that calls its application."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from starlette.types import ASGIApp, Message

from distillmatch import ContinualLearner
from distillmatch.learner.inputs import Items, PixelReader, read_all
from distillmatch.serve.app import Review, make_app
from distillmatch.serve.camera import look
from distillmatch.serve.labels import Labels

TOKEN, ONCE, HOST = "the-token-of-the-tests", "a-word-for-once", "127.0.0.1:8765"
CLASSES = ("blue", "green", "red")
COLORS = {"red": (230, 20, 20), "green": (20, 230, 20), "blue": (20, 20, 230), "gray": (128,) * 3}
COLORS |= {"orange": (200, 185, 20)}


class ColorLearner:
    """Takes the strongest color for the class, and what has little color for unknown."""

    classes_ = np.array(CLASSES)

    def __init__(self, rejects: bool = True) -> None:
        self.can_reject = rejects
        self.seen = 0

    def reader_for(self, items: Items) -> PixelReader:
        return PixelReader(16)

    def answer_rows(
        self, rows: NDArray[np.uint8], reject: bool = False
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        self.seen += len(rows)
        strength = np.exp(rows.mean(axis=(1, 2))[:, ::-1] / 40)
        shares = np.asarray(strength / strength.sum(axis=1, keepdims=True), np.float32)
        best = self.classes_[shares.argmax(axis=1)]
        return np.where(reject & (_saturation(rows) < 50), "unknown", best), shares

    def predict_familiarity(self, items: Items) -> NDArray[np.float32]:
        return _saturation(read_all(items, self.reader_for(items)))


def _saturation(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.asarray(np.ptp(rows.mean(axis=(1, 2)), axis=1), np.float32)


def write_camera(folder: Path, counts: dict[str, int]) -> Path:
    """Write noisy squares, each with a content of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for color, count in counts.items():
        for number in range(count):
            noise = np.random.default_rng(number).integers(-20, 20, (24, 32, 3))
            pixels = np.clip(np.array(COLORS[color]) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{color}-{number}.png")
    return folder


def start_review(camera: Path, out: Path, learner: Any = None) -> Review:
    learner = cast(ContinualLearner, learner or ColorLearner())
    seen = look(learner, [camera], out)
    return Review(learner, seen, Labels(out, CLASSES, seen.shots))


def numbers_of(review: Review, color: str) -> list[int]:
    return [n for n, shot in enumerate(review.camera.shots) if shot.name.startswith(color)]


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    asked: int = 0
    """How many pieces of the request's body were asked for."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Calls an application as a server would: nothing is tidied up on the way."""

    def __init__(self, review: Review) -> None:
        self.app: ASGIApp = make_app(review, TOKEN, ONCE, (HOST, "localhost:8765"))

    def get(self, path: str, **given: Any) -> Answer:
        return self.ask("GET", f"/{TOKEN}{path}", **given)

    def post(self, path: str, body: Any = None, **given: Any) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", f"/{TOKEN}{path}", [content], **given)

    def ask(
        self,
        method: str,
        path: str,
        body: Sequence[bytes] = (),
        headers: Sequence[tuple[str, str]] = (),
        hosts: Sequence[str] = (HOST,),
    ) -> Answer:
        sent = [("host", host) for host in hosts] + list(headers)
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(errors="replace"),
            "root_path": "",
            "query_string": b"",
            "scheme": "http",
            "headers": [(key.lower().encode(), value.encode()) for key, value in sent],
        }
        answer, pieces = Answer(), list(body) or [b""]

        async def receive() -> Message:
            answer.asked += 1
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        async def call() -> None:
            await self.app(scope, receive, send)

        asyncio.run(call())
        return answer
