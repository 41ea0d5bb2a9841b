"""A cluster on this machine whose workers are as far away as one says.

Each connection to and from a worker goes through a relay that hands every piece of it on after a latency, and at a bandwidth that
all connections share in each direction, as those of one driver do.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Link", "cluster"]

PIECE = 2**16


@dataclass(frozen=True)
class Link:
    """What a network between a driver and its workers does.

    Attributes
    ----------
    latency : float
        Seconds, one way.
    bandwidth : float
        Bytes a second, of all workers together, in each direction.
    """

    latency: float = 0.0
    bandwidth: float = float("inf")


class Relay:
    """Hands on what connections carry, late and slowly; in a thread of its own."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.loop = asyncio.new_event_loop()
        self.free = {"out": 0.0, "in": 0.0}  # when each direction has sent all that it was given
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def port(self, target: int, towards: str) -> int:
        """Listen, and relay each connection to a port of this machine; what its opener sends goes `towards` "out" or "in"."""
        back = "in" if towards == "out" else "out"

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, hence = await asyncio.open_connection("127.0.0.1", target)
            except OSError:
                writer.close()
                return
            await asyncio.gather(self._pump(reader, hence, towards), self._pump(there, writer, back))

        async def listen() -> int:
            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            return int(server.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(listen(), self.loop).result()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, piece = await waiting.get()
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                if not piece:
                    break
                writer.write(piece)
                await writer.drain()

        delivery = asyncio.ensure_future(deliver())
        try:
            while piece := await reader.read(PIECE):
                sent = max(time.perf_counter(), self.free[way]) + len(piece) / self.link.bandwidth
                self.free[way] = sent
                waiting.put_nowait((sent + self.link.latency, piece))
            waiting.put_nowait((time.perf_counter() + self.link.latency, b""))
            await delivery
        except OSError:
            delivery.cancel()
        finally:
            writer.close()

    def close(self) -> None:
        """Stop."""
        self.loop.call_soon_threadsafe(self.loop.stop)


@contextmanager
def cluster(workers: int, link: Link) -> Iterator[Any]:
    """Start a scheduler here and workers of one thread behind a link; yields the client.

    A link that is neither late nor slow is no relay at all.
    """
    from distributed import Client, LocalCluster
    from distributed.utils import open_port

    relay = None if link == Link() else Relay(link)
    with LocalCluster(n_workers=0, dashboard_address=None) as local, Client(local) as client:
        port = int(local.scheduler_address.rpartition(":")[2])
        ours = relay.port(port, "in") if relay else port
        processes = []
        try:
            for _ in range(workers):
                theirs = open_port()
                command = [
                    "-m",
                    "distributed.cli.dask_worker",
                    f"tcp://127.0.0.1:{ours}",
                    "--no-nanny",
                    "--no-dashboard",
                ]
                command += ["--nthreads", "1", "--listen-address", f"tcp://127.0.0.1:{theirs}", "--memory-limit", "0"]
                contact = relay.port(theirs, "out") if relay else theirs
                command += ["--contact-address", f"tcp://127.0.0.1:{contact}"]
                quiet = subprocess.DEVNULL
                processes.append(subprocess.Popen([sys.executable, *command], stdout=quiet, stderr=quiet))
            client.wait_for_workers(workers, timeout=120)
            yield client
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
    if relay:
        relay.close()
