"""The review page as an ASGI application, and its protection from others.

Every address but `/predict` begins with the token, which `/predict` takes as bearer too. Images are
named by number, so no request can name a file. What is sent of them is decoded and encoded anew.
"""

import hmac
import io
import re
import warnings
from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distillmatch.errors import DiskError, DistillMatchError
from distillmatch.learner import ContinualLearner
from distillmatch.learner.inputs import read_all
from distillmatch.serve.camera import Camera, judge
from distillmatch.serve.groups import group_images, uncertainties
from distillmatch.serve.labels import Labels
from distillmatch.sources.images import FORMATS, BadImageError, ImageFile, decode_image, upright
from distillmatch.terminal import tell, without_progress

GUESSES = 3
THUMB_SIDE, PICTURE_SIDE = 224, 1280
LARGEST_IMAGE, LARGEST_REQUEST = 32 * 2**20, 4 * 2**20
"""Bytes that a request may bring: an image to predict, or labels."""
KEPT = "private, max-age=3600"
HEADERS = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
THREADS = 2
"""Images that are decoded at once: one can take hundreds of megabytes."""


class Review:
    """A learner, its camera images, and the labels given so far."""

    def __init__(self, learner: ContinualLearner, camera: Camera, labels: Labels) -> None:
        self.learner, self.camera, self.labels = learner, camera, labels
        self.classes = [str(label) for label in learner.classes_]
        self.uncertainty = uncertainties(camera.judged)
        self.groups = group_images(camera.judged, self.uncertainty, self.classes)

    def page(self) -> dict[str, Any]:
        """Return everything the page shows but the pictures; groups with the largest gain first."""
        given = [self.labels.of(number) for number in range(len(self.camera.shots))]
        gains = self.uncertainty * [label is None for label in given]
        names = [shot.name for shot in self.camera.shots]
        rows = self.camera.judged.probabilities
        best = np.argsort(-rows, axis=1, kind="stable")[:, :GUESSES].tolist()
        guesses = [
            [(self.classes[number], round(float(row[number]), 3)) for number in numbers]
            for row, numbers in zip(rows, best, strict=True)
        ]
        uncertainty = self.uncertainty.round(3).astype(float).tolist()
        groups = sorted(self.groups, key=lambda group: -gains[group.images].sum())
        images = list(zip(names, guesses, given, uncertainty, strict=True))
        return {**self._status(), "images": images, "groups": [asdict(one) for one in groups]}

    def give(self, numbers: Sequence[int], label: str | None) -> dict[str, Any]:
        """Label images, and return what changed."""
        return self._changed(self.labels.give(numbers, label))

    def undo(self) -> dict[str, Any]:
        """Undo the last action, and return what changed."""
        return self._changed(self.labels.undo())

    def predict(self, content: bytes) -> dict[str, Any]:
        """Return what the learner says of an image file."""
        image = [ImageFile("this file", partial(io.BytesIO, content))]
        rejects = self.learner.can_reject
        with without_progress():
            judged = judge(self.learner, read_all(image, self.learner.reader_for(image)))
            familiarity = self.learner.predict_familiarity(image) if rejects else None
        shares = judged.probabilities[0]
        return {
            "label": self.classes[int(shares.argmax())],
            "probabilities": dict(zip(self.classes, map(float, shares), strict=True)),
            "familiarity": None if familiarity is None else float(familiarity[0]),
            "known": bool(judged.familiar[0]) if rejects else None,
        }

    def picture(self, number: int, whole: bool) -> bytes:
        """Return an image as JPEG: whole, or the square that the learner sees.

        A file that is not the one that was judged is refused.
        """
        shot, made = self.camera.shots[number], io.BytesIO()
        shot.refuse_change()
        with Path(shot.path).open("rb") as file:
            if whole:
                with Image.open(file, formats=FORMATS) as opened:
                    image = upright(opened, PICTURE_SIDE // 2)
                image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
            else:
                image = Image.fromarray(decode_image(file, THUMB_SIDE))
        image.save(made, "JPEG", quality=85)
        return made.getvalue()

    def _changed(self, numbers: Sequence[int]) -> dict[str, Any]:
        return {**self._status(), "changed": {n: self.labels.of(n) for n in numbers}}

    def _status(self) -> dict[str, Any]:
        return {
            "classes": self.labels.classes,
            "undo": self.labels.undoable,
            "folder": str(self.labels.folder),
        }


class _Labeling(BaseModel):
    """A request to label images: "" leaves them out, null removes their labels."""

    model_config = ConfigDict(strict=True, extra="forbid")
    images: list[Annotated[int, Field(ge=0)]]
    label: str | None


def _routes(review: Review, page: str) -> list[Route]:
    """Return the addresses and what answers them."""
    decoding, predicting = CapacityLimiter(THREADS), CapacityLimiter(1)

    async def html(request: Request) -> Response:
        return HTMLResponse(page)

    async def content(request: Request) -> Response:
        return JSONResponse(await run_sync(review.page))

    async def label(request: Request) -> Response:
        wanted = _Labeling.model_validate_json(await _body(request, LARGEST_REQUEST))
        if max(wanted.images, default=0) >= len(review.camera.shots):
            raise HTTPException(400, "there is no image of this number")
        return JSONResponse(await run_sync(review.give, wanted.images, wanted.label))

    async def undo(request: Request) -> Response:
        return JSONResponse(await run_sync(review.undo))

    async def predict(request: Request) -> Response:
        image = await _body(request, LARGEST_IMAGE)
        return JSONResponse(await run_sync(review.predict, image, limiter=predicting))

    async def picture(request: Request) -> Response:
        text = request.path_params["number"]
        number = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
        if not 0 <= number < len(review.camera.shots):
            raise HTTPException(404, "there is no image of this number")
        whole = request.url.path.startswith("/picture/")
        made = await run_sync(review.picture, number, whole, limiter=decoding)
        return Response(made, media_type="image/jpeg", headers={"cache-control": KEPT})

    return [
        Route("/", html),
        Route("/page", content),
        Route("/label", label, methods=["POST"]),
        Route("/undo", undo, methods=["POST"]),
        Route("/predict", predict, methods=["POST"]),
        *(Route(f"/{kind}/{{number}}", picture) for kind in ("thumb", "picture")),
    ]


class Guard:
    """Refuses what is not from the page or without the token, and adds headers for the browser.

    `once` is a word that leads to the page a single time: other users of the machine may read the
    command line of a browser that is started with it.
    """

    def __init__(
        self, app: ASGIApp, token: str, once: str, hosts: Collection[str], policy: str
    ) -> None:
        self._app, self._token, self._hosts = app, token, hosts
        self._once: str | None = once
        self._headers = {**HEADERS, "content-security-policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("cache-control", "no-store")
                headers.update(self._headers)
            await send(message)

        headers = Headers(scope=scope)
        first, _, rest = scope["path"].removeprefix("/").partition("/")
        app: ASGIApp = self._app
        if not self._is_local(headers):
            app = JSONResponse({"error": "this page is for this machine only"}, 403)
        elif _is_same(first, self._token):
            scope = {**scope, "path": f"/{rest}"}
        elif self._once is not None and _is_same(first, self._once):
            self._once = None
            app = RedirectResponse(f"/{self._token}/", 303)
        elif not _is_same(headers.get("authorization", "").removeprefix("Bearer "), self._token):
            app = JSONResponse(
                {"error": "expected the token that `distillmatch review` printed"},
                401,
                {"www-authenticate": "Bearer"},
            )
        await app(scope, receive, send_safely)

    def _is_local(self, headers: Headers) -> bool:
        """Return whether a request names this server and does not come from another page."""
        origins = {f"http://{host}" for host in self._hosts}
        named = headers.getlist("host")
        is_named = len(named) == 1 and named[0] in self._hosts
        return is_named and origins.issuperset(headers.getlist("origin"))


def make_app(review: Review, token: str, once: str, hosts: Collection[str]) -> ASGIApp:
    """Return the application for requests to `hosts`, each with its port."""
    warnings.simplefilter("ignore")  # Pillow's, of images that are refused
    page = (files("distillmatch.serve") / "review.html").read_text(encoding="utf-8")
    inline = [re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("script", "style")]
    script, style = (" ".join(map(_source, found)) for found in inline)
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    app = Starlette(
        routes=_routes(review, page),
        exception_handlers={
            HTTPException: _refuse,
            DistillMatchError: _refuse,
            BadImageError: _refuse,
            ValidationError: _refuse,
            Exception: _fail,
        },
    )
    app.router.redirect_slashes = False
    return Guard(app, token, once, hosts, policy)


async def _body(request: Request, limit: int) -> bytes:
    """Return the body of a request; refuse a body that is too large before reading it all."""
    length = request.headers.get("content-length", "0")
    content = bytearray()
    if not length.isdecimal() or int(length) <= limit:
        async for piece in request.stream():
            content += piece
            if len(content) > limit:
                break
        else:
            return bytes(content)
    raise HTTPException(413, f"expected at most {limit:,} bytes", {"connection": "close"})


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer a request that cannot be met, in one sentence."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    if isinstance(error, ValidationError):
        return JSONResponse({"error": "expected {images: numbers, label: a name or null}"}, 400)
    status = 500 if isinstance(error, DiskError) else 400
    return JSONResponse({"error": " ".join(str(error).split())}, status)


async def _fail(request: Request, error: Exception) -> Response:
    """Answer a request that met an unexpected error, and report it in the terminal."""
    tell(f"a request failed: {type(error).__name__}: {error}")
    return JSONResponse({"error": "this failed; the terminal says why"}, 500)


def _is_same(text: str, secret: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(text.encode(errors="replace"), secret.encode())


def _source(inline: str) -> str:
    """Return the policy source that allows this inline script or style alone."""
    return f"'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'"
