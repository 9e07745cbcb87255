"""Every public operation of the producer that speaks to the driver, ready to be called on a pool in use."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from tests.rules.operations import Prepare, Prepared, lent, pack, request, settle, transport_of
from tests.rules.toy import Toy, bytes_of
from vmmref import FeatureTransport
from vmmref.errors import StaleLease


def wrap_tensor(pool: Toy) -> Prepared:
    return Prepared(lambda: pool.pool.wrap_tensor(bytes_of(1, 256)))


def wrap_borrowable(pool: Toy) -> Prepared:
    return Prepared(lambda: pool.pool.wrap_tensor(bytes_of(1, 256), borrowable=True))


def wrap_for_a_group(pool: Toy) -> Prepared:
    return Prepared(lambda: pool.pool.wrap_tensor(bytes_of(1, 256), groups=[(0, 1)]))


def wrap_tensors(pool: Toy) -> Prepared:
    return Prepared(lambda: pool.pool.wrap_tensors([bytes_of(1, 100), bytes_of(2, 60)]))


def begin_publish(pool: Toy) -> Prepared:
    return Prepared(lambda: pool.begin(1))


def finish_publish(pool: Toy) -> Prepared:
    publication = pool.begin(1)
    return Prepared(lambda: pool.pool.finish_publish(publication))


def copy_tensor(pool: Toy) -> Prepared:
    return Prepared(lambda: pool.pool.copy_tensor(bytes_of(1, 256)))


def cancel_queued_lease(pool: Toy) -> Prepared:
    lease = pool.begin(1).lease
    return Prepared(lambda: pool.pool.cancel_lease(lease))


def cancel_ready_lease(pool: Toy) -> Prepared:
    lease = pool.wrap(1).lease
    return Prepared(lambda: pool.pool.cancel_lease(lease))


def cancel_proxy(pool: Toy) -> Prepared:
    proxy = pool.wrap(1)
    return Prepared(lambda: pool.pool.cancel_proxy(proxy))


def cancel_pack(pool: Toy) -> Prepared:
    child = pack(pool)[1]
    return Prepared(lambda: pool.pool.cancel_proxy(child))


def begin_cancel(pool: Toy) -> Prepared:
    lease = pool.begin(1).lease
    return Prepared(lambda: pool.pool.begin_cancel(lease))


def revoke(pool: Toy) -> Prepared:
    lease = pool.wrap(1).lease
    return Prepared(lambda: pool.pool.revoke(lease))


def revoke_under_a_reader(pool: Toy) -> Prepared:
    proxy = pool.wrap(1)
    reading = pool.start(proxy)

    def finish() -> None:
        with contextlib.suppress(StaleLease):
            reading.finish()

    return Prepared(lambda: pool.pool.revoke(proxy.lease), finish)


def revoke_under_a_view(pool: Toy) -> Prepared:
    proxy = lent(pool)
    proxy.borrow_on_target_device("sim", 2, 0)

    def give_back() -> None:
        proxy.release_borrowed(2, 0)
        pool.release(proxy, 1)

    return Prepared(lambda: pool.pool.revoke(proxy.lease), give_back)


def release_lease(pool: Toy) -> Prepared:
    lease = pool.wrap(1).lease
    return Prepared(lambda: pool.pool.release_lease(lease))


def recycle(pool: Toy) -> Prepared:
    for value in (1, 2):
        pool.consume(pool.wrap(value))
    return Prepared(pool.pool.recycle)


def recycle_what_was_revoked(pool: Toy) -> Prepared:
    """A borrowable lease that outlives its end until all ranks have acknowledged."""
    proxy = lent(pool)
    pool.pool.revoke(proxy.lease)
    for rank in range(2):
        pool.release(proxy, rank)
    pool.drain()
    return Prepared(pool.pool.recycle)


def look(pool: Toy) -> Prepared:
    pool.consume(pool.wrap(1))
    return Prepared(pool.pool.look)


def claim(pool: Toy) -> Prepared:
    for value in (1, 2, 3):
        pool.consume(pool.wrap(value))
    seen = pool.pool.look()
    return Prepared(lambda: pool.pool.claim(seen))


def reclaim(pool: Toy) -> Prepared:
    pool.pool.begin_cancel(pool.begin(1).lease)
    pool.pool.begin_cancel(pool.wrap(2).lease)
    return Prepared(pool.pool.reclaim)


def reclaim_without_waiting(pool: Toy) -> Prepared:
    pool.pool.begin_cancel(pool.wrap(1).lease)
    pool.pool.begin_cancel(pool.wrap(2).lease)
    pool.drain()
    return Prepared(lambda: pool.pool.reclaim(wait=False))


def reap(pool: Toy) -> Prepared:
    return Prepared(pool.pool.reap)


def watch_consumer(pool: Toy) -> Prepared:
    return Prepared(lambda: pool.pool.watch_consumer(0, os.getpid()))


def synchronize(pool: Toy) -> Prepared:
    pool.begin(1)
    return Prepared(pool.pool.synchronize)


def publish_request(pool: Toy) -> Prepared:
    transport = transport_of(pool)
    fields = request()
    before = dict(fields)

    def publish() -> None:
        try:
            transport.publish(fields, single=("single",))
        except BaseException:
            assert fields == before, "a request that failed is half published"
            raise

    return Prepared(publish, lambda: settle(transport))


def publish_request_async(pool: Toy) -> Prepared:
    transport = transport_of(pool)
    fields = request()
    before = dict(fields)

    def publish() -> None:
        try:
            asyncio.run(_published(transport, fields))
        except BaseException:
            assert fields == before, "a request that failed is half published"
            raise

    return Prepared(publish, lambda: settle(transport))


async def _published(transport: FeatureTransport, fields: dict[str, Any]) -> None:
    await transport.publish_async(fields, single=("single",))


def cancel_request(pool: Toy) -> Prepared:
    transport = transport_of(pool)
    published = transport.publish(request(), single=("single",))
    return Prepared(lambda: transport.cancel(published), lambda: settle(transport))


WITHOUT_CONSUMERS: tuple[Prepare, ...] = (
    wrap_tensor, wrap_borrowable, wrap_for_a_group, wrap_tensors, begin_publish, finish_publish, copy_tensor,
    cancel_queued_lease, cancel_ready_lease, cancel_proxy, cancel_pack, begin_cancel, revoke, release_lease, reclaim,
    reclaim_without_waiting, synchronize, publish_request, publish_request_async, cancel_request,
)  # fmt: skip
"""Those for which nobody has imported the pool: a process that has lost its context can never drop an import."""

OF_PRODUCERS: tuple[Prepare, ...] = (
    *WITHOUT_CONSUMERS, revoke_under_a_reader, revoke_under_a_view, recycle, recycle_what_was_revoked, look, claim,
    reap, watch_consumer,
)  # fmt: skip
"""On a pool of three slots and two ranks. `shutdown` has a test of its own; what is not here asks no driver."""
