"""The web server of the page: for those on this host who have its token."""

import asyncio
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from importlib.resources import files
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from parshall.errors import ParshallError, UsageError
from parshall.live.listening import CONNECTIONS_MAX
from parshall.live.saved import Saved
from parshall.live.token import new_token
from parshall.live.view import View
from parshall.live.watch import Watch

# A request that waits for news is answered after this time without them.
_WAIT_MAX_S = 10.0
_BODY_BYTES_MAX = 4096
# A page asks as soon as it is connected.
_REQUEST_S = 10.0
_PAGE = {
    "/": ("index.html", "text/html"),
    "/live.js": ("live.js", "text/javascript"),
    "/live.css": ("live.css", "text/css"),
    "/uplot.js": ("uplot/uplot.js", "text/javascript"),
    "/uplot.css": ("uplot/uplot.css", "text/css"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A report has scripts of its own, which get no access to this server.
_REPORT_POLICY = "sandbox allow-scripts allow-popups; frame-ancestors 'none'"


class Server:
    """Serves the page of a watch in a thread, until the end of the block.

    Parameters
    ----------
    watch : Watch
        What is shown.
    saved : Saved
        Where spans of the log are saved.
    listener : socket.socket
        What listens, see `listening`.
    token : str, optional
        What the page's address has; default: a new one.
    """

    def __init__(self, watch: Watch, saved: Saved, listener: socket.socket, token: str | None = None) -> None:
        self._socket = listener
        host, self.port = listener.getsockname()[:2]
        """Its port."""
        self.token = token or new_token()
        """Who has it may see the page's numbers."""
        # An address that stands for all of a host's is none that a browser can open.
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        name = f"[{here}]" if ":" in here else here
        self.url = f"http://{name}:{self.port}/#{self.token}"
        """Where the page is; browsers do not send what follows the #."""
        names = {f"{name}:{self.port}"} | ({f"localhost:{self.port}"} if host in ("127.0.0.1", "::1") else set())
        news = _News(watch)
        application = Starlette(routes=_routes(watch, saved, news))
        config = uvicorn.Config(
            _Guard(application, names, self.token, needs_names=host not in ("0.0.0.0", "::")),
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
            server_header=False,
            date_header=False,
            http=_Impatient,
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="server", daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        # Requests that wait for news are not waited for.
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._socket.close()


class _Impatient(H11Protocol):
    """Ends connections that make no request: each takes one of those that there may be."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_S, self._end_without_request)

    def _end_without_request(self) -> None:
        if self.cycle is None:
            self.transport.close()


class _Guard:
    """Lets only requests through that a page of this server makes."""

    def __init__(self, application: ASGIApp, names: Iterable[str], token: str, *, needs_names: bool) -> None:
        self._application = application
        self._names = {name.encode() for name in names}
        self._origins = {b"http://" + name for name in self._names}
        self._token = token.encode()
        self._needs_names = needs_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        host = headers.get(b"host", b"")
        origin = headers.get(b"origin")
        origins = self._origins if self._needs_names else {b"http://" + host}
        problem = None
        # A name that somebody else's DNS gives to this address is not ours.
        if self._needs_names and host not in self._names:
            problem = Response("unknown Host: open the address that parshall live printed\n", 421)
        elif origin is not None and origin not in origins:
            problem = Response("requests of other pages are refused\n", 403)
        elif scope["path"].startswith("/api/") and not secrets.compare_digest(
            headers.get(b"x-parshall-token", b""), self._token
        ):
            problem = Response("wrong token: open the address that parshall live printed\n", 401)
        elif not headers.get(b"content-length", b"0").isdigit() or (
            int(headers.get(b"content-length", b"0")) > _BODY_BYTES_MAX or b"transfer-encoding" in headers
        ):
            problem = Response(f"expected at most {_BODY_BYTES_MAX} bytes\n", 413)

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(one for one in added if one[0] not in given)]
            await send(message)

        await (problem or self._application)(scope, receive, send_with_headers)


class _News:
    """Wakes requests that wait for news."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        watch.on_news = self._announce

    def _announce(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def after(self, version: int) -> None:
        """Wait until there is something newer than a version, but not for ever."""
        self._loop = asyncio.get_running_loop()
        event = self._event
        if self._watch.version <= version:
            try:
                await asyncio.wait_for(event.wait(), _WAIT_MAX_S)
            except TimeoutError:
                return


def _routes(watch: Watch, saved: Saved, news: _News) -> list[Route]:
    page = files("parshall.live") / "page"

    def static(path: str) -> Route:
        name, kind = _PAGE[path]
        content = (page / name).read_bytes()

        async def send(_: Request) -> Response:
            return Response(content, media_type=kind)

        return Route(path, send)

    async def frame(request: Request) -> Response:
        view, after = _view(request)
        await news.after(after)
        return Response(await run_in_threadpool(watch.frame, view), media_type="application/json")

    async def curve(request: Request) -> Response:
        text = request.query_params.get("flow")
        flow = None if text is None else _number("flow", text)
        return Response(await run_in_threadpool(watch.curve, flow), media_type="application/json")

    async def save(request: Request) -> Response:
        body = await request.json()
        begin_ms, end_ms = (float(body[name]) for name in ("from_ms", "until_ms"))
        path, problem = await run_in_threadpool(saved.save, watch.path, int(begin_ms * 1e6), int(end_ms * 1e6))
        return JSONResponse({"path": str(path), "key": path.name, "problem": problem})

    async def report(request: Request) -> Response:
        body = await request.json()
        key = await run_in_threadpool(saved.report, str(body["key"]))
        return JSONResponse({"url": f"/report/{key}"})

    async def show_report(request: Request) -> Response:
        path = saved.reports.get(request.path_params["key"])
        if path is None:
            return PlainTextResponse("no such report\n", 404)
        return FileResponse(path, media_type="text/html", headers={"Content-Security-Policy": _REPORT_POLICY})

    return [
        *map(static, _PAGE),
        Route("/api/frame", _answering(frame)),
        Route("/api/curve", _answering(curve)),
        Route("/api/save", _answering(save), methods=["POST"]),
        Route("/api/report", _answering(report), methods=["POST"]),
        Route("/report/{key}", show_report),
    ]


def _answering(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler whose errors are one line."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", 400)
        except (KeyError, TypeError, ValueError, OverflowError):
            return PlainTextResponse("the request is not what the page sends\n", 400)
        except (ParshallError, OSError) as error:
            return PlainTextResponse(f"{error}\n", 500)

    return handle


def _view(request: Request) -> tuple[View, int]:
    """Return the view that a request names, and the version that it has."""
    given = request.query_params
    at = given.get("at_ms")
    view = View(
        sort=given.get("sort", "acked_Mbps"),
        descending=given.get("descending", "1") == "1",
        words=given.get("words", ""),
        group=given.get("group", ""),
        offset=_number("offset", given.get("offset", "0")),
        count=_number("count", given.get("count", "50")),
        # The page's times are exact to the microsecond.
        at_ns=None if at is None else int(float(at) * 1e6) + 1000,
    )
    return view, _number("after", given.get("after", "0"))


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(f"{name}: expected a whole number")
    return int(text)
