"""Every public operation of a consumer that speaks to the driver, ready to be called on a pool in use."""

from __future__ import annotations

import contextlib

from tests.rules.operations import Prepare, Prepared, give_view_back, lent, pack, request, transport_of
from tests.rules.toy import Toy, bytes_of
from vmmref import FeatureTransport
from vmmref.errors import StaleLease
from vmmref.imports import close_imports
from vmmref.proxy import Reconstruction


def first_read(pool: Toy) -> Prepared:
    """With the import, and the rank's stream and table."""
    proxy = pool.wrap(1)
    return Prepared(lambda: pool.read(proxy))


def later_read(pool: Toy) -> Prepared:
    pool.consume(pool.wrap(1))
    proxy = pool.wrap(2)
    return Prepared(lambda: pool.read(proxy, rank=1))


def begin_read(pool: Toy) -> Prepared:
    pool.join()
    proxy = pool.wrap(1)
    begun: list[Reconstruction] = []

    def finish() -> None:
        for reading in begun:
            reading.finish()

    return Prepared(lambda: begun.append(pool.start(proxy)), finish)


def finish_read(pool: Toy) -> Prepared:
    reading = pool.start(pool.wrap(1))
    return Prepared(reading.finish)


def finish_stale_read(pool: Toy) -> Prepared:
    """Of a lease that could be borrowed: the late reader acknowledges all the same."""
    proxy = lent(pool)
    reading = pool.start(proxy)
    pool.pool.revoke(proxy.lease)
    pool.release(proxy, 1)

    def finish() -> None:
        with contextlib.suppress(StaleLease):
            reading.finish()

    return Prepared(finish, lambda: pool.release(proxy))


def read_for_a_group(pool: Toy) -> Prepared:
    proxy = pool.pool.wrap_tensor(bytes_of(1, 256), groups=[(1, 0)])
    assert proxy is not None, "the pool is full"
    return Prepared(
        lambda: proxy.reconstruct_on_target_device("sim", 2, (1, 0)),
        lambda: proxy.release_without_reconstruction(2, (1, 0)),
    )


def read_child_of_a_pack(pool: Toy) -> Prepared:
    children = pack(pool)

    def release() -> None:
        for rank in range(2):
            children[1].release_without_reconstruction(2, rank)

    return Prepared(lambda: children[0].reconstruct_on_target_device("sim", 2, 0), release)


def first_borrow(pool: Toy) -> Prepared:
    proxy = lent(pool)
    return Prepared(lambda: proxy.borrow_on_target_device("sim", 2, 0), lambda: give_view_back(pool, proxy))


def later_borrow(pool: Toy) -> Prepared:
    pool.join()
    proxy = lent(pool)
    return Prepared(lambda: proxy.borrow_on_target_device("sim", 2, 0), lambda: give_view_back(pool, proxy))


def release_borrowed(pool: Toy) -> Prepared:
    proxy = lent(pool)
    proxy.borrow_on_target_device("sim", 2, 0)
    return Prepared(lambda: proxy.release_borrowed(2, 0), lambda: give_view_back(pool, proxy))


def first_release(pool: Toy) -> Prepared:
    proxy = pool.wrap(1)
    return Prepared(lambda: pool.release(proxy))


def later_release(pool: Toy) -> Prepared:
    pool.consume(pool.wrap(1))
    proxy = pool.wrap(2)
    return Prepared(lambda: pool.release(proxy, rank=1))


def acknowledge(pool: Toy) -> Prepared:
    pool.join()
    proxy = pool.wrap(1)
    return Prepared(lambda: proxy.acknowledge_consumption(2, 1))


def release_child_of_a_pack(pool: Toy) -> Prepared:
    pool.join()
    child = pack(pool)[1]
    return Prepared(lambda: child.release_without_reconstruction(2, 1))


def drop_import(pool: Toy) -> Prepared:
    """With a reading that nobody will finish."""
    pool.consume(pool.wrap(1))
    pool.start(pool.wrap(2))
    nonce = pool.pool.card.nonce
    return Prepared(lambda: close_imports(nonce), lambda: close_imports(nonce))


def receive_request(pool: Toy) -> Prepared:
    fields = request()
    transport_of(pool).publish(fields, single=("single",))
    return Prepared(
        lambda: FeatureTransport.receive(fields, "sim", 2, 0), lambda: FeatureTransport.abort(fields, 2, 0, "sim")
    )


def abort_request(pool: Toy) -> Prepared:
    fields = request()
    transport_of(pool).publish(fields, single=("single",))
    return Prepared(
        lambda: FeatureTransport.abort(fields, 2, 0, "sim"), lambda: FeatureTransport.abort(fields, 2, 0, "sim")
    )


OF_CONSUMERS: tuple[Prepare, ...] = (
    first_read, later_read, begin_read, finish_read, finish_stale_read, read_for_a_group, read_child_of_a_pack,
    first_borrow, later_borrow, release_borrowed, first_release, later_release, acknowledge, release_child_of_a_pack,
    drop_import, receive_request, abort_request,
)  # fmt: skip
"""On a pool of three slots and two ranks."""
