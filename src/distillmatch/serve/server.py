"""The server of the review page: on the loopback, until a signal ends it."""

import socket
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Thread
from typing import Any

from distillmatch.errors import ConfigError
from distillmatch.runs.interruption import THREADS, Interrupted, StopRequest

LOOPBACK = "127.0.0.1"
NEEDED = ("starlette", "uvicorn")
_GRACE_SECONDS = 3
_MOST_CONNECTIONS = 100


def check_installed() -> None:
    """Raise if the packages that serve the page are not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the review page is served by {' and '.join(missing)}, not installed here: "
            "pip install 'distillmatch[serve]'"
        )


def open_socket(port: int) -> socket.socket:
    """Return a socket that listens on this machine alone; port 0 is any free one."""
    try:
        return socket.create_server((LOOPBACK, port), backlog=_MOST_CONNECTIONS)
    except OSError as error:
        raise ConfigError(
            f"--port {port}: {error.strerror or error}; give another, or none for a free one"
        ) from None


def hosts_of(listening: socket.socket) -> tuple[str, ...]:
    """Return the host names that requests may use."""
    port = listening.getsockname()[1]
    named = (f"{LOOPBACK}:{port}", f"localhost:{port}")
    return (*named, LOOPBACK, "localhost") if port == 80 else named


def open_browser(address: str) -> None:
    """Show a page in the user's browser, if there is one."""
    Thread(target=webbrowser.open, args=(address,), daemon=True).start()


@contextmanager
def running(app: Any, listening: socket.socket) -> Iterator[Thread]:
    """Answer requests in a thread while the block lasts."""
    import uvicorn  # noqa: PLC0415  an extra

    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        log_config=None,
        log_level="critical",  # the application reports failures
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    thread = Thread(
        target=server.run, args=([listening],), name=f"{THREADS}review page", daemon=True
    )
    thread.start()
    try:
        yield thread
    finally:
        server.should_exit = True
        thread.join()


def serve(app: Any, listening: socket.socket) -> Interrupted:
    """Answer requests until a signal comes; return the interruption."""
    with StopRequest() as stop, running(app, listening) as thread:
        while thread.is_alive() and not stop.asked:
            thread.join(0.2)
    return stop.interrupted("at the review")
