"""BRK: who gets a descriptor, what bad clients can do, and how a broker's end is told."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

from vmmref.broker import TOKEN_BYTES, DescriptorBroker, request_descriptor
from vmmref.conformance.subjects.experiments.trial import PATIENCE_SECONDS, Trial, answer_of, in_fork
from vmmref.errors import BrokerError
from vmmref_models.operations import DONE, Outcome, refused
from vmmref_models.reasons import Reason

ANSWER_SECONDS = 5.0
"""An honest client is served by then, whatever others do: less than a broker that serves one after the other would give
to the silent ones before it, and enough on a busy machine."""
NOBODY = 65534
"""A user that is not the pool's."""
NAME = "CUDA VMM"
_ANSWER_BYTES = 64


@contextlib.contextmanager
def _serving(trial: Trial, kind: type[DescriptorBroker] | None = None) -> Iterator[tuple[DescriptorBroker, int]]:
    """A broker that serves a small file in place of a pool, and the file."""
    file = os.memfd_create("vmmref-experiment", os.MFD_CLOEXEC)
    try:
        broker = (kind or trial.parts.broker)(file, NAME)
        try:
            broker.start()
            yield broker, file
        finally:
            broker.close(PATIENCE_SECONDS)
    finally:
        os.close(file)


def _connected(name: bytes) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        # Without a time-out, so that it waits for room in a full queue.
        client.connect(name)
        client.settimeout(PATIENCE_SECONDS)
    except BaseException:
        client.close()
        raise
    return client


def _ask(trial: Trial, locator: bytes, file: int) -> None:
    """Ask as one should; what comes must be the file."""
    received = request_descriptor(locator, NAME)
    try:
        trial.check(os.path.samestat(os.fstat(received), os.fstat(file)), "the descriptor is not of the pool's memory")
    finally:
        os.close(received)


def ask(trial: Trial) -> Outcome:
    """The right user with the token, once or often; a broker by itself, or a pool's."""
    times = 1 + trial.random.randrange(4)
    if trial.chance():
        with trial.pool(handle_type="posix_fd") as pool:
            # The first wire form that leaves is what starts the broker.
            bytes(trial.published(pool))
            assert pool._descriptor is not None, "a pool that is open has its descriptor"
            for _ in range(times):
                _ask(trial, pool.card.locator, pool._descriptor)
        return DONE
    with _serving(trial) as (broker, file):
        for _ in range(times):
            _ask(trial, broker.locator, file)
    return DONE


def ask_without_token(trial: Trial) -> Outcome:
    """No token, a wrong one, a part of the right one, or more than the right one."""
    with _serving(trial) as (broker, file):
        right = broker.locator[:TOKEN_BYTES]
        flipped = trial.random.randrange(TOKEN_BYTES)
        token = trial.random.choice(
            (
                b"",
                bytes(TOKEN_BYTES),
                trial.random.randbytes(TOKEN_BYTES),
                right[:flipped] + bytes([right[flipped] ^ 1 << trial.random.randrange(8)]) + right[flipped + 1 :],
                right[: trial.random.randrange(1, TOKEN_BYTES)],
                right + trial.random.randbytes(1 + trial.random.randrange(64)),
            )
        )
        answer = _answer_to(token, broker.locator[TOKEN_BYTES:])
        _ask(trial, broker.locator, file)
    return answer


def _answer_to(token: bytes, name: bytes) -> Outcome:
    """What a client is answered that shows this token: no descriptor is NO_DESCRIPTOR."""
    with _connected(name) as client:
        try:
            client.sendall(token)
            received = _received(client)
        except (BrokenPipeError, ConnectionResetError):
            received = []
    for descriptor in received:
        os.close(descriptor)
    if received:
        return Outcome("done", message=f"the broker gave {len(received)} descriptor(s)")
    return refused(Reason.NO_DESCRIPTOR, f"the broker gave nothing for a token of {len(token)} bytes [BRK-1]")


def ask_as_another_user(trial: Trial) -> Outcome:
    """The token, shown by another user. Needs root."""
    with _serving(trial) as (broker, file):
        token, name = broker.locator[:TOKEN_BYTES], broker.locator[TOKEN_BYTES:]

        def body() -> bytes:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            return str(_answer_to(token, name).reason).encode()

        answer = in_fork(body).decode()
        _ask(trial, broker.locator, file)
    if answer != Reason.NO_DESCRIPTOR:
        return Outcome("done", message=f"user {NOBODY} got {answer!r}")
    return refused(Reason.NO_DESCRIPTOR, f"the broker hung up on user {NOBODY} [BRK-1]")


def ask_among_bad_clients(trial: Trial) -> Outcome:
    """An honest client among some that vanish, lie, flood and stall; all of them hang up in the end."""
    bad = [_vanish, _vanish_after_the_token, _lie, _give, _stall, _flood]
    with contextlib.ExitStack() as clients:
        broker, file = clients.enter_context(_serving(trial))
        for behave in trial.random.sample(bad, 1 + trial.random.randrange(4)):
            behave(trial, broker, clients)
            if not _is_served(broker, file):
                trial.check(False, f"an honest client was not served beside others: {behave.__name__}")
                break
    return DONE


def _is_served(broker: DescriptorBroker, file: int) -> bool:
    """Whether an honest client gets the descriptor in time."""
    with _connected(broker.locator[TOKEN_BYTES:]) as client:
        client.settimeout(ANSWER_SECONDS)
        try:
            client.sendall(broker.locator[:TOKEN_BYTES])
            received = _received(client)
        except OSError:
            return False
    try:
        return [os.path.samestat(os.fstat(each), os.fstat(file)) for each in received] == [True]
    finally:
        for descriptor in received:
            os.close(descriptor)


def _received(client: socket.socket) -> list[int]:
    """The descriptors that come with the answer."""
    _, ancillary, _, _ = client.recvmsg(_ANSWER_BYTES, socket.CMSG_SPACE(_ANSWER_BYTES), socket.MSG_CMSG_CLOEXEC)
    return [descriptor for _, _, data in ancillary for descriptor in memoryview(data).cast("i")]


def _vanish(trial: Trial, broker: DescriptorBroker, clients: contextlib.ExitStack) -> None:
    for _ in range(1 + trial.random.randrange(8)):
        _connected(broker.locator[TOKEN_BYTES:]).close()


def _vanish_after_the_token(trial: Trial, broker: DescriptorBroker, clients: contextlib.ExitStack) -> None:
    for _ in range(1 + trial.random.randrange(8)):
        with _connected(broker.locator[TOKEN_BYTES:]) as client:
            client.sendall(broker.locator[:TOKEN_BYTES])


def _lie(trial: Trial, broker: DescriptorBroker, clients: contextlib.ExitStack) -> None:
    for _ in range(1 + trial.random.randrange(4)):
        client = clients.enter_context(_connected(broker.locator[TOKEN_BYTES:]))
        client.sendall(trial.random.randbytes(trial.random.randrange(4096)))


def _give(trial: Trial, broker: DescriptorBroker, clients: contextlib.ExitStack) -> None:
    """Descriptors that nobody has asked for: the broker must not keep them."""
    with _connected(broker.locator[TOKEN_BYTES:]) as client, open(os.devnull, "rb") as gift:
        socket.send_fds(client, [b"take this"], [gift.fileno()] * (1 + trial.random.randrange(8)))


def _stall(trial: Trial, broker: DescriptorBroker, clients: contextlib.ExitStack) -> None:
    for _ in range(4 + trial.random.randrange(5)):
        clients.enter_context(_connected(broker.locator[TOKEN_BYTES:]))


def _flood(trial: Trial, broker: DescriptorBroker, clients: contextlib.ExitStack) -> None:
    """More silent connections than a broker keeps, and no more than wait in its queue."""
    for _ in range(70 + trial.random.randrange(30)):
        clients.enter_context(_connected(broker.locator[TOKEN_BYTES:]))


def ask_the_dead(trial: Trial) -> Outcome:
    """A broker that has been closed, one that never served and was closed, or that of a pool that was shut down."""
    if trial.chance():
        with trial.pool(handle_type="posix_fd") as pool:
            locator = pool.card.locator
            if trial.chance():
                # The first wire form that leaves is what starts the broker.
                bytes(trial.published(pool))
    else:
        with _serving(trial) as (broker, _):
            locator = broker.locator
    return _refusal_of(lambda: request_descriptor(locator, NAME))


def _refusal_of(request: Callable[[], int]) -> Outcome:
    """The answer to a request for a descriptor; one that comes all the same is closed."""
    try:
        os.close(request())
    except BrokerError as error:
        return refused(error.reason, str(error))
    return Outcome("done", message="a descriptor came")


def broken_broker(trial: Trial) -> Outcome:
    """End a broker whose thread hangs; it must say so, and end once the thread does."""
    release = threading.Event()
    serve = trial.parts.broker._serve

    def hang(self: DescriptorBroker) -> None:
        release.wait(PATIENCE_SECONDS)
        serve(self)

    stuck = type("Stuck", (trial.parts.broker,), {"_serve": hang})
    with _serving(trial, stuck) as (broker, _):
        try:
            return answer_of(lambda: broker.close(trial.random.choice((0.0, 0.002, 0.01))))
        finally:
            release.set()
