"""The application of the review page: who is let in, what is answered, what is refused."""

import io
import re
import struct
import zlib
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from review_client import (
    CLASSES,
    COLORS,
    HOST,
    ONCE,
    TOKEN,
    Client,
    ColorLearner,
    numbers_of,
    start_review,
    write_camera,
)

from distillmatch.serve import app as of_app
from distillmatch.serve.app import Review

GETS = ("/", "/page", "/thumb/0", "/picture/0")
POSTS = ("/label", "/undo", "/predict")
BEARER = ("authorization", f"Bearer {TOKEN}")


@pytest.fixture
def review(tmp_path: Path) -> Review:
    (tmp_path / "secret.txt").write_text("nobody may read this")
    camera = write_camera(tmp_path / "camera", {"red": 3, "green": 2, "orange": 2, "gray": 2})
    return start_review(camera, tmp_path / "labels")


@pytest.fixture
def client(review: Review) -> Client:
    return Client(review)


def image_file(color: str, size: int = 16) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), COLORS[color]).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "\udc80é"])
def test_nothing_is_answered_without_the_token(client: Client, token: str) -> None:
    for method, paths in (("GET", GETS), ("POST", POSTS)):
        for path in paths:
            bearer = ("authorization", f"Bearer {token.encode('ascii', 'ignore').decode()}")
            for answer in (
                client.ask(method, f"/{token}{path}"),
                client.ask(method, path),
                client.ask(method, path, headers=[bearer]),
            ):
                assert answer.status == 401 and "token" in answer.json["error"]
                assert answer.headers["www-authenticate"] == "Bearer"


def test_the_word_for_the_browser_leads_to_the_page_once(client: Client) -> None:
    assert client.ask("GET", f"/{ONCE}", hosts=["evil.example"]).status == 403
    first, second = client.ask("GET", f"/{ONCE}"), client.ask("GET", f"/{ONCE}")
    assert first.status == 303 and first.headers["location"] == f"/{TOKEN}/"
    assert second.status == 401 and TOKEN not in str(second)
    assert (
        client.ask("POST", "/predict", headers=[("authorization", f"Bearer {ONCE}")]).status == 401
    )


def test_requests_for_another_host_are_refused(client: Client) -> None:
    others = ["evil.example", "127.0.0.1:1", "127.0.0.1", "127.0.0.1.evil:8765"]
    for hosts in ((), (HOST, HOST), *((one,) for one in others)):
        for path in GETS:
            assert client.get(path, hosts=hosts).status == 403
        assert client.ask("POST", "/predict", headers=[BEARER], hosts=hosts).status == 403


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://127.0.0.1:1", f"https://{HOST}", ""]
)
def test_requests_of_other_pages_are_refused(client: Client, review: Review, origin: str) -> None:
    request = {"images": [0], "label": "red"}
    assert client.post("/label", request, headers=[("origin", origin)]).status == 403
    assert not review.labels.labeled
    assert client.post("/label", request, headers=[("origin", f"http://{HOST}")]).status == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/thumb/../secret.txt", "/../secret.txt", "//secret.txt", "/thumb/%2e%2e%2fsecret.txt"),
        *("/thumb/../../secret.txt", "/picture/..\\secret.txt", "/thumb//etc/passwd"),
        *("/thumb/-1", "/thumb/9", "/thumb/١", "/thumb/1.0", "/thumb/0/../1", "/thumb/"),
        *("/thumb/" + "9" * 5000, "/labels/red", "/page/"),
    ],
)
def test_no_path_leads_to_a_file(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status == 404
    assert b"nobody may read this" not in answer.body


def test_every_answer_has_the_headers_that_keep_others_out(client: Client) -> None:
    assert all(client.get(path).status == 200 for path in GETS)
    assert all(client.get(path).status == 405 for path in POSTS)
    answers = [client.get("/"), client.get("/thumb/0"), client.get("/none"), client.ask("GET", "/")]
    answers += [client.post("/label", b"no json"), client.get("/", hosts=["evil.example"])]
    assert [answer.status for answer in answers] == [200, 200, 404, 401, 400, 403]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers


def test_the_page_runs_its_own_script_and_needs_nothing_else(client: Client) -> None:
    answer = client.get("/")
    page = answer.body.decode()
    assert answer.headers["content-type"].startswith("text/html")
    for tag in ("script", "style"):
        (inline,) = re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL)
        digest = b64encode(sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert not re.findall(r"https?:|@import|url\(|\son\w+=\"|style=\"", page)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"data:,"}


def test_too_large_bodies_are_refused_before_they_are_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = client.ask(
        "POST", f"/{TOKEN}/predict", [b"x"], headers=[("content-length", str(10**12))]
    )
    assert claimed.status == 413 and claimed.asked == 0
    monkeypatch.setattr(of_app, "LARGEST_IMAGE", 1000)
    monkeypatch.setattr(of_app, "LARGEST_REQUEST", 1000)
    for path in ("/predict", "/label"):
        streamed = client.ask("POST", f"/{TOKEN}{path}", [bytes(400)] * 50)
        assert streamed.status == 413 and streamed.asked == 3
        assert "1,000 bytes" in streamed.json["error"]


def bomb() -> bytes:
    """Return a PNG of a few bytes that says it has 40,000 by 40,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    head = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b""))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bomb(), "pixels"),
        (b"", "empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "format"),
        (image_file("red")[:60], "damaged"),
    ],
)
def test_what_is_no_image_is_not_predicted(client: Client, content: bytes, said: str) -> None:
    answer = client.post("/predict", content)
    assert answer.status == 400 and said in answer.json["error"]


def test_predict_answers_as_the_learner_does(client: Client, tmp_path: Path) -> None:
    said = client.post("/predict", image_file("green")).json
    assert said["label"] == "green" and said["known"] is True
    assert said["familiarity"] == pytest.approx(210, abs=5)
    assert list(said["probabilities"]) == list(CLASSES)
    assert sum(said["probabilities"].values()) == pytest.approx(1)
    by_bearer = client.ask("POST", "/predict", [image_file("gray")], headers=[BEARER])
    assert by_bearer.json["known"] is False
    camera = write_camera(tmp_path / "other", {"gray": 2, "red": 1})
    client = Client(start_review(camera, tmp_path / "out", ColorLearner(rejects=False)))
    said = client.post("/predict", image_file("gray")).json
    assert said["known"] is said["familiarity"] is None
    assert {group["kind"] for group in client.get("/page").json["groups"]} == {"doubtful", "sure"}


def test_the_page_shows_groups_with_the_largest_gain_first(client: Client, review: Review) -> None:
    shown = client.get("/page").json
    kinds = [(group["kind"], group["label"]) for group in shown["groups"]]
    assert kinds == [("unfamiliar", None), ("doubtful", "red"), ("sure", "red"), ("sure", "green")]
    assert sorted(shown["groups"][0]["images"]) == numbers_of(review, "gray")
    assert sorted(shown["groups"][1]["images"]) == numbers_of(review, "orange")
    name, guesses, label, uncertainty = shown["images"][numbers_of(review, "red")[0]]
    assert name == "red-0.png" and guesses[0][0] == "red" and label is None
    assert 0 < uncertainty < 0.5
    client.post("/label", {"images": numbers_of(review, "gray"), "label": "gray"})
    shown = client.get("/page").json
    assert shown["groups"][-1]["kind"] == "unfamiliar", "nothing is left to learn there"
    assert shown["classes"] == [*CLASSES, "gray"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\xff", b"[" * 100_000, b'{"images": [0]}', b'{"images": [0], "label": 3}'),
        *(
            b'{"images": [%s], "label": "red"}' % number
            for number in (b"true", b'"0"', b"-1", b"9")
        ),
        b'{"images": [0], "label": "red", "path": "/etc/passwd"}',
        *(b'{"images": [0], "label": "%s"}' % label for label in (b"../red", b"\\ud800")),
    ],
)
def test_senseless_requests_are_refused_and_change_nothing(
    client: Client, review: Review, body: bytes
) -> None:
    answer = client.post("/label", body)
    assert answer.status == 400 and answer.json["error"]
    assert not review.labels.labeled and not review.labels.folder.exists()


def test_pictures_are_made_anew(client: Client, review: Review) -> None:
    green = numbers_of(review, "green")[0]
    for path, size in (("/thumb", (224, 224)), ("/picture", (32, 24))):
        answer = client.get(f"{path}/{green}")
        assert answer.headers["content-type"] == "image/jpeg"
        image = Image.open(io.BytesIO(answer.body))
        assert image.size == size
        mean = np.asarray(image).mean(axis=(0, 1))
        assert np.abs(mean - COLORS["green"]).max() < 12


def test_an_image_that_went_away_or_was_replaced_is_not_shown_and_gets_no_label(
    client: Client, review: Review, tmp_path: Path
) -> None:
    path = Path(review.camera.shots[0].path)
    (tmp_path / "private.png").write_bytes(image_file("blue", size=40))
    path.unlink()
    for said in ("No such file", "has changed"):
        for kind in ("thumb", "picture"):
            answer = client.get(f"/{kind}/0")
            assert answer.status == 400 and said in answer.json["error"]
        answer = client.post("/label", {"images": [1, 0], "label": "red"})
        assert answer.status == 400 and said in answer.json["error"]
        assert client.get("/page").json["images"][1][2] == "red", "the first was labeled"
        assert client.post("/undo").json["changed"] == {"1": None}
        if not path.is_symlink():
            path.symlink_to(tmp_path / "private.png")
