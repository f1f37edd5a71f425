"""What stands before every request: who may ask, how much, how many at a time and how slowly; and one line of log.

The log names the request, never what was asked.
"""

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from demur.serving.instruments import Instruments
from demur.serving.limits import Limits, Refused

log = logging.getLogger(__name__)

OPEN = ("/", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready")  # without a token: they tell nothing
ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
BUSY = "the server is busy; try again in 1 s"
LARGE = 2**16  # bytes of a compressed request, from where on others do not wait for it


class Guard:
    """Around the whole app: reads a request within the limits, or answers for it.

    Without a token whoever reaches the server may ask, and pages of other sites in a browser on this machine reach it:
    such requests are refused. With `local` so are those for another host's name, which such a page may have led here.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, token: str | None, instruments: Instruments, local: bool = False
    ) -> None:
        self._app, self._limits, self._token, self._instruments = app, limits, token, instruments
        self._local = local and token is None
        self._requests, self._bytes = 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, ended = time.perf_counter(), 500, False
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        asked = headers.get("x-request-id", "")
        scope["state"] = {**scope.get("state", {}), "told": {}, "request": asked if ID.fullmatch(asked) else new_id()}

        async def sending(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", scope["state"]["request"].encode())]
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        held = 0  # bytes, of this request

        def hold(count: int) -> None:
            nonlocal held
            self._bytes, held = self._bytes + count - held, count
            self._check_room()

        self._requests += 1
        try:
            self._check(scope, headers)
            body = await self._body(receive, hold)
            if encoding := headers.get("content-encoding", ""):
                given = (body, encoding, self._limits.body)
                body = decompress(*given) if len(body) < LARGE else await asyncio.to_thread(decompress, *given)
                hold(len(body))
            await self._app(scope, replay(body, receive), sending)
        except Refused as refused:
            await error_response(str(refused), refused.status)(scope, receive, sending)
        except Exception:  # a mistake of the server's own
            log.exception("failed", extra={"fields": {"request": scope["state"]["request"]}})
            if not ended:
                raise
        finally:
            self._requests -= 1
            self._bytes -= held
            self._tell(scope, status, time.perf_counter() - began)

    def _check(self, scope: Scope, headers: Mapping[str, str]) -> None:
        if self._requests > self._limits.requests:
            raise Refused(BUSY, 503)
        self._check_room()
        self._check_sender(scope, headers)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body:
            raise Refused(f"the request has {length[:20]} bytes, at most {self._limits.body} are read; send fewer", 413)

    def _check_sender(self, scope: Scope, headers: Mapping[str, str]) -> None:
        if self._token is not None:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._token.encode()) and scope["path"] not in OPEN:
                raise Refused("the token is missing or wrong; send the header Authorization: Bearer TOKEN", 401)
            return
        if self._local and not is_local(headers.get("host", "")):
            raise Refused(
                f"host {headers['host'][:60]!r} is not this machine; ask for localhost, or start demur serve with "
                "--token-file",
                403,
            )
        if headers.get("sec-fetch-site") == "cross-site" and scope["method"] not in ("GET", "HEAD"):
            raise Refused("a page of another site may not ask without a token; see --token-file", 403)

    def _check_room(self) -> None:
        if self._bytes > max(self._limits.bodies, self._limits.body):
            raise Refused(BUSY, 503)

    async def _body(self, receive: Receive, hold: Callable[[int], None]) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused("the client has gone", 499)
                    body += message.get("body", b"")
                    if len(body) > self._limits.body:
                        raise Refused(f"the request has more than {self._limits.body} bytes; send fewer", 413)
                    hold(len(body))
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Refused(
                f"the request took more than {self._limits.seconds:g} s to arrive; send it faster", 408
            ) from None

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        told: dict[str, Any] = scope["state"]["told"]
        self._instruments.request(told.get("model", ""), status, seconds)
        fields = {"request": scope["state"]["request"], "method": scope["method"], "path": scope["path"][:200]}
        log.info("request", extra={"fields": fields | {"status": status, "ms": round(1e3 * seconds, 2)} | told})


def decompress(body: bytes, encoding: str, most: int) -> bytes:
    """A body as it was before the client compressed it; never more than `most` bytes are made of it."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise Refused(f"content-encoding {encoding[:20]!r} is not read; send gzip, deflate or none", 415)
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)  # the head of either tells which it is
    try:
        whole = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise Refused(f"the request is no {encoding} ({error}); compress it again") from None
    if len(whole) > most:
        raise Refused(f"the request has more than {most} bytes when decompressed; send fewer", 413)
    if not reader.eof or reader.unused_data:
        raise Refused(f"the request is no whole {encoding}; compress it again")
    return whole


def is_local(host: str) -> bool:
    """Whether a header `Host` names this machine, or is not there."""
    named = HOST.fullmatch(host)
    name = "" if named is None else named[1].strip("[]").lower()
    if not host or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def new_id() -> str:
    return secrets.token_hex(8)


def error_response(message: str, status: int, retry_after: int = 1) -> JSONResponse:
    headers = {"retry-after": str(retry_after)} if status == 503 else {}
    if status in (408, 413):
        headers["connection"] = "close"  # the rest of the request is not read
    return JSONResponse({"error": " ".join(message.split())}, status, headers)


def replay(body: bytes, receive: Receive) -> Receive:
    """The body once, as one message, and then whatever happens on the connection."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class JsonLines(logging.Formatter):
    """A record as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": at, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_json_lines() -> None:
    """What the server and uvicorn log, to stderr and nowhere else."""
    lines = logging.StreamHandler()
    lines.setFormatter(JsonLines())
    for name in ("demur.serving", "uvicorn", "asyncio", "python_multipart"):
        logging.getLogger(name).handlers = [lines]
        logging.getLogger(name).propagate = False
    logging.getLogger("demur.serving").setLevel(logging.INFO)
