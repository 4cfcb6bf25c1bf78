"""Runs a command in a network of its own, with one way out: a Unix socket, behind a port.

    python deploy/relay.py --socket /run/fl-dp-desk-north/fleet.sock --port 9101 -- \
      flower-supernode --insecure --superlink 127.0.0.1:9101

A SuperNode calls its SuperLink over a port, and a process in a network of its own reaches no port
outside it. So what comes to that network's port goes to the socket, and the answers back.
Ends with the command, and with its status. A command that calls nobody for a while is killed: an
app can end a SuperNode's loop, and leave its process.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence

_PIECE = 1 << 16  # bytes
_SILENCE = 90.0  # seconds: a SuperNode calls twice a minute
_LOOK = 1.0  # seconds between two looks at what has come


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    hear: Callable[[], None] = lambda: None,
) -> None:
    """Hand on all that comes, until its end, and tell `hear` of each piece."""
    try:
        while piece := await reader.read(_PIECE):
            hear()
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:  # one end is gone
        writer.close()


async def relay(port: int, socket: str, command: Sequence[str]) -> int:
    """Run a command, and carry bytes between a loopback port and a socket until it ends.

    The command finds the other end at the port. Returns the command's exit status.
    """
    loop = asyncio.get_running_loop()
    heard = loop.time()

    def hear() -> None:
        nonlocal heard
        heard = loop.time()

    async def end_in_silence(process: asyncio.subprocess.Process) -> None:
        while loop.time() - heard < _SILENCE:
            await asyncio.sleep(_LOOK)
        print(f"relay: {command[0]} has called nobody for {_SILENCE:g} s", file=sys.stderr)
        process.kill()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_socket, to_socket = await asyncio.open_unix_connection(socket)
        except OSError as error:  # the desk does not run yet: the command tries again
            print(f"relay: {socket}: {error}", file=sys.stderr, flush=True)
            writer.close()
            return
        await asyncio.gather(_carry(reader, to_socket, hear), _carry(from_socket, writer))
        for end in (to_socket, writer):
            end.close()

    async with await asyncio.start_server(serve, "127.0.0.1", port):
        process = await asyncio.create_subprocess_exec(*command)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.send_signal, number)
        watch = loop.create_task(end_in_silence(process))
        try:
            return await process.wait()
        finally:
            watch.cancel()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="A command with one way out of its network")
    parser.add_argument("--socket", required=True, help="Unix socket of the desk")
    parser.add_argument("--port", required=True, type=int, help="port of loopback for the command")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    asked = parser.parse_args(arguments)
    raise SystemExit(asyncio.run(relay(asked.port, asked.socket, asked.command)))


if __name__ == "__main__":
    main()
