"""A router: who connects through it seems to come from its address, at which no port is open to who calls back."""

import asyncio
import contextlib
import threading

ADDRESS = "127.0.0.77"
"""All of 127.0.0.0/8 is this machine: a peer that listens at another address of it does not listen here."""


@contextlib.contextmanager
def router(to: int):
    """A port of 127.0.0.1 that leads to the port `to`, where its callers seem to come from ADDRESS."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="router", daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(_serve(to), loop).result(30)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_close(server), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _serve(to: int) -> asyncio.Server:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            back, forth = await asyncio.open_connection("127.0.0.1", to, local_addr=(ADDRESS, 0))
            await asyncio.gather(_pass_on(reader, forth), _pass_on(back, writer))

    return await asyncio.start_server(accept, "127.0.0.1", 0)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer), contextlib.suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()


async def _close(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
