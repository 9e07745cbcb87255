"""One request's tensors from a producer to two ranks, each a process of its own, on the simulated driver.

Run it from the project's root, with vmmref installed:  python -m examples.feature_transport
"""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import torch

from vmmref import FeatureTransport, VmmMemoryPool, close_imports

RANKS = 2
WAIT_SECONDS = 60.0


def rank_main(rank: int, producer: Connection) -> None:
    """One consumer: receive each request, answer with a checksum a field, until None comes."""
    while (fields := producer.recv()) is not None:
        tensors = FeatureTransport.receive(fields, "sim", RANKS, rank)
        producer.send({name: float(value.sum()) for name, value in tensors.items() if isinstance(value, torch.Tensor)})
    # Only when all that the rank has queued is over may the memory go.
    close_imports()


def request(images: int) -> dict[str, Any]:
    """The fields that a processor would make of a prompt with some images."""
    return {
        "modality": "image",
        "feature": torch.arange(images * 3 * 64, dtype=torch.float32).reshape(images, 3, 64),
        "grid": torch.full((images, 3), 8, dtype=torch.int64),
        "precomputed_embeddings": None,
    }


async def serve(transport: FeatureTransport, ranks: list[Connection]) -> None:
    """Send three requests, the last one larger than the pool."""
    for images in (1, 4, 8192):
        fields = request(images)
        published = await transport.publish_async(fields)
        try:
            for rank in ranks:
                rank.send(fields)
        except BaseException:
            # Not every rank has it: nobody would acknowledge for those that do not.
            transport.cancel(published)
            raise
        for number, rank in enumerate(ranks):
            if not rank.poll(WAIT_SECONDS):
                raise TimeoutError(f"rank {number} does not answer")
            print(f"{images} image(s), {len(published.leases)} lease(s), rank {number} got {rank.recv()}")


def main() -> None:
    """Start the ranks, serve, stop."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(RANKS)]
    children = [context.Process(target=rank_main, args=(rank, pipes[rank][1])) for rank in range(RANKS)]
    for child in children:
        child.start()
    try:
        with VmmMemoryPool(4 << 20, "sim", RANKS, max_inflight_slices=64) as pool:
            transport = FeatureTransport(pool, processor=request)
            asyncio.run(serve(transport, [ours for ours, _ in pipes]))
            for ours, _ in pipes:
                ours.send(None)
            for child in children:
                child.join(WAIT_SECONDS)
            pool.recycle()
            print(f"{pool.active_lease_count} lease(s) left; {transport.stats()}")
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
            child.join(WAIT_SECONDS)


if __name__ == "__main__":
    main()
