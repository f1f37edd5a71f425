"""uvicorn around the app: a socket, signals, and no patience with clients that do not finish their headers, or do not
read what they asked for."""

import asyncio
import logging
import signal
import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from demur.serving.app import Server

PATIENCE = 10.0  # seconds from the first byte of a request to the end of its headers
IDLE = 15  # seconds that a connection stays open without a request
UNREAD = 60.0  # seconds that a client has to read an answer
FINISHING = 30  # seconds that requests have to end once the server is stopped


class Impatient(H11Protocol):
    """Closes connections whose headers do not arrive, or whose answers are not read; the body's time is the guard's."""

    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()  # the headers are whole
        elif self._late is None:
            self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._forget_answer()
        if self.transport.get_write_buffer_size():
            self._unread = asyncio.get_running_loop().call_later(UNREAD, self._drop_answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._forget_answer()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._late = asyncio.get_running_loop().call_later(PATIENCE, self.transport.close)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _drop_answer(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _forget_answer(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens, or one sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once only on sockets that say they are TCP; on others every answer waits 40 ms for the client
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(256)
    except OSError as error:
        listening.close()
        why = error.strerror or error
        raise ValueError(f"{host} port {port} cannot be listened to ({why}); give another --host or --port") from None
    return listening


def web_server(app: ASGIApp) -> uvicorn.Server:
    """uvicorn with these settings, for whoever runs it in a loop of their own."""
    config = uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=FINISHING,
        h11_max_incomplete_event_size=2**15,
    )
    return uvicorn.Server(config)


def run_plain(app: ASGIApp, listening: socket.socket) -> None:
    """Serve an app without models until SIGINT or SIGTERM."""
    asyncio.run(web_server(app).serve(sockets=[listening]))


def run(app: ASGIApp, server: Server, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, then finish what was accepted; SIGHUP loads the models anew."""
    asyncio.run(_run(web_server(app), server, listening))


async def _run(web: uvicorn.Server, server: Server, listening: socket.socket) -> None:
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.get_running_loop().create_task(server.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    logging.getLogger(__name__).info("started", extra={"fields": {"models": list(server.models)}})
    await web.serve(sockets=[listening])
