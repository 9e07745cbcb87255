"""The descriptor broker: who shows the token gets one descriptor, everybody else nothing, and nobody stops it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import multiprocessing
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from vmmref.broker import MOST_CLIENTS, TOKEN_BYTES, DescriptorBroker, request_descriptor
from vmmref.conformance.campaigns import broker as campaign
from vmmref.errors import BrokerError
from vmmref_models.reasons import Reason

CONTENT = b"the pool's memory"


def open_descriptors() -> list[str]:
    """What this process has open, by target; the listing's own descriptor is left out."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sorted(targets)


@pytest.fixture
def broker() -> Iterator[DescriptorBroker]:
    """A serving broker of a small file; nothing of it is left open afterwards."""
    before = open_descriptors()
    descriptor = os.memfd_create("pool", os.MFD_CLOEXEC)
    os.write(descriptor, CONTENT)
    serving = DescriptorBroker(descriptor, "CUDA VMM")
    serving.start()
    yield serving
    serving.close(10)
    os.close(descriptor)
    assert open_descriptors() == before


def connected(broker: DescriptorBroker) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    # Without a time-out, so that it waits for room in a full queue.
    client.connect(broker.locator[TOKEN_BYTES:])
    client.settimeout(10)
    return client


def assert_serves(broker: DescriptorBroker) -> None:
    descriptor = request_descriptor(broker.locator, "CUDA VMM")
    try:
        assert os.pread(descriptor, 100, 0) == CONTENT
    finally:
        os.close(descriptor)


def test_the_token_gets_a_descriptor_of_the_same_file(broker: DescriptorBroker) -> None:
    for _ in range(3):
        assert_serves(broker)


@pytest.mark.rule("HND-6")
def test_hnd_6_a_received_descriptor_is_close_on_exec(broker: DescriptorBroker) -> None:
    """
    A descriptor that was received does not leak into programs that are started later.

    Given: a serving broker.
    When: a client asks it for a descriptor.
    Then: the descriptor has the close-on-exec flag.
    """
    descriptor = request_descriptor(broker.locator, "CUDA VMM")
    try:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    finally:
        os.close(descriptor)


@pytest.mark.rule("BRK-1")
@pytest.mark.parametrize("token", [b"", b"x", bytes(TOKEN_BYTES), b"garbage " * 100], ids=["none", "x", "zero", "long"])
def test_brk_1_another_token_gets_nothing(broker: DescriptorBroker, token: bytes) -> None:
    """
    Without the token there is no descriptor and no word.

    Given: a client that sends nothing of use.
    When: it waits for an answer.
    Then: the end of the connection, and the broker serves on.
    """
    with connected(broker) as client:
        client.sendall(token)
        answer, ancillary, _, _ = client.recvmsg(64, socket.CMSG_SPACE(64))
    assert (answer, ancillary) == (b"", [])
    assert_serves(broker)


def test_a_longer_token_that_begins_right_gets_nothing(broker: DescriptorBroker) -> None:
    with connected(broker) as client:
        client.sendall(broker.locator[:TOKEN_BYTES] + b"x")
        assert client.recvmsg(64, socket.CMSG_SPACE(64))[:2] == (b"", [])


@pytest.mark.rule("BRK-3")
def test_brk_3_a_refusal_names_its_reason(broker: DescriptorBroker) -> None:
    """
    A client that gets no descriptor is told so.

    Given: a broker, and a wrong token.
    When: a descriptor is asked for.
    Then: NO_DESCRIPTOR.
    """
    wrong = bytes(TOKEN_BYTES) + broker.locator[TOKEN_BYTES:]
    with pytest.raises(BrokerError, match="CUDA VMM POSIX FD broker returned no file descriptor") as refusal:
        request_descriptor(wrong, "CUDA VMM")
    assert (refusal.value.reason, refusal.value.rule) == (Reason.NO_DESCRIPTOR, "BRK-3")


def test_clients_that_connect_and_vanish(broker: DescriptorBroker) -> None:
    for _ in range(20):
        connected(broker).close()
    assert_serves(broker)


def test_a_client_that_vanishes_after_its_token(broker: DescriptorBroker) -> None:
    for _ in range(20):
        with connected(broker) as client:
            client.sendall(broker.locator[:TOKEN_BYTES])
    assert_serves(broker)


def test_descriptors_sent_to_the_broker_are_dropped(broker: DescriptorBroker) -> None:
    # The fixture counts what is open in the end.
    with connected(broker) as client, open(os.devnull, "rb") as gift:
        socket.send_fds(client, [b"take this"], [gift.fileno()] * 8)
        assert client.recv(64) == b""
    assert_serves(broker)


def test_many_clients_at_once(broker: DescriptorBroker) -> None:
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            assert_serves(broker)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []


@pytest.mark.rule("BRK-2")
def test_brk_2_clients_that_stall_or_flood_stop_nobody(broker: DescriptorBroker) -> None:
    """
    Whoever is silent costs the others nothing.

    Given: two hundred connections that say nothing, more than the broker keeps.
    When: another client asks, and again after the silent ones are gone.
    Then: it is served within the time that one silent client is given.
    """
    silent = [connected(broker) for _ in range(200)]
    started = time.monotonic()
    assert_serves(broker)
    assert time.monotonic() - started < 2.0
    for client in silent:
        client.close()
    assert_serves(broker)


@pytest.mark.rule("BRK-2")
def test_brk_2_a_silent_client_is_hung_up_on(broker: DescriptorBroker) -> None:
    """
    A client has bounded time to show its token.

    Given: a connection that says nothing.
    When: it waits for an answer.
    Then: the broker hangs up.
    """
    with connected(broker) as client:
        assert client.recv(64) == b""


@pytest.mark.rule("BRK-2")
def test_brk_2_a_flood_does_not_push_out_who_has_spoken() -> None:
    """
    A client whose token is there is served, however many others have come since.

    Given: a client that has sent its token to a broker that does not serve yet, and behind it more silent ones than
    the broker keeps.
    When: the broker begins to serve.
    Then: the client gets its descriptor.
    """
    descriptor = os.memfd_create("pool", os.MFD_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        serving = DescriptorBroker(descriptor, "CUDA VMM")
        stack.callback(serving.close, 10)
        first = stack.enter_context(connected(serving))
        first.sendall(serving.locator[:TOKEN_BYTES])
        for _ in range(MOST_CLIENTS + 10):
            stack.enter_context(connected(serving))
        serving.start()
        answer, descriptors, _, _ = socket.recv_fds(first, 64, 8)
        for each in descriptors:
            os.close(each)
    assert (answer, len(descriptors)) == (b"\1", 1)


@pytest.mark.rule("BRK-2")
def test_brk_2_a_descriptor_that_cannot_be_sent_now_is_asked_for_again(
    broker: DescriptorBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Too many descriptors of the user's are under way, maybe none of them ours: that passes.

    Given: a broker whose kernel refuses to send a descriptor, twice.
    When: a client asks.
    Then: it is served.
    """
    refusals = [OSError(errno.ETOOMANYREFS, "too many references")] * 2
    send = socket.socket.sendmsg

    def refusing(self: socket.socket, *arguments: Any) -> int:
        if refusals:
            raise refusals.pop()
        return send(self, *arguments)

    monkeypatch.setattr(socket.socket, "sendmsg", refusing)
    assert_serves(broker)
    assert refusals == []


def _serve_without_descriptors(connection: Connection) -> None:
    """Serve, use up every descriptor that this process may have, wait for the word, and let go of some."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    # The broker's own descriptors get numbers above the 1024 that select() knows.
    held = [os.memfd_create("pool", os.MFD_CLOEXEC) for _ in range(1100)]
    os.write(held[0], CONTENT)
    broker = DescriptorBroker(held[0], "CUDA VMM")
    broker.start()
    with contextlib.suppress(OSError):
        while True:
            held.append(os.dup(held[0]))
    connection.send(broker.locator)
    connection.recv()
    for descriptor in held[-10:]:
        os.close(descriptor)
    connection.recv()
    broker.start()
    connection.send("alive")


@pytest.mark.rule("BRK-2")
def test_brk_2_a_broker_without_descriptors_serves_when_it_has_some_again() -> None:
    """
    A producer that has run out of descriptors for a moment is not one that serves nobody.

    Given: a producer that has all the descriptors that it may have, more than a thousand.
    When: a client asks, and the producer then lets go of some.
    Then: the client is served.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve_without_descriptors, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(60), "the producer has not started"
        locator = ours.recv()
        # Before the producer has any again: the broker is told of this one, and cannot accept it.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as client:
            client.settimeout(10)
            client.connect(locator[TOKEN_BYTES:])
            client.sendall(locator[:TOKEN_BYTES])
            client.settimeout(0.1)
            with pytest.raises(TimeoutError):
                client.recv(1)
            ours.send("let go")
            client.settimeout(10)
            assert client.recv(1) == b"\1"
        os.close(request_descriptor(locator, "CUDA VMM"))
        ours.send("are you there?")
        assert ours.poll(60), "the producer has died"
        assert ours.recv() == "alive"
    finally:
        ours.close()
        process.join(10)
        process.kill()
        process.join()


@pytest.mark.rule("BRK-2")
@pytest.mark.slow
def test_brk_2_honest_clients_among_hostile_ones_are_served() -> None:
    """
    Whatever others do, an honest client is served in bounded time and nothing of them stays.

    Given: a broker in a process of its own.
    When: a thousand hostile clients of many kinds come, and fifty honest ones among them.
    Then: every honest one is served within five seconds, of its patience of ten; nobody else gets anything; the
    broker's process has the descriptors, threads and memory that it had before.
    """
    result = campaign.run(hostile=1000, honest=50, seed=1)
    assert result.problems == ()
    assert len(result.latencies) == 50
    assert result.latency(1.0) < 5.0
    assert sum(result.hostile.values()) == 1000
    assert len(result.hostile) > 15


@pytest.mark.rule("BRK-2")
def test_brk_2_closing_does_not_wait_for_clients(broker: DescriptorBroker) -> None:
    """
    A silent client does not hold up the end of the pool.

    Given: connections that say nothing.
    When: the broker is closed.
    Then: at once, and the clients see the end.
    """
    silent = [connected(broker) for _ in range(3)]
    started = time.monotonic()
    broker.close(10)
    assert time.monotonic() - started < 1.0
    for client in silent:
        with client, contextlib.suppress(ConnectionResetError):
            assert client.recv(64) == b""


_AS_ANOTHER_USER = """
import socket, sys
token, name = (bytes.fromhex(text) for text in sys.argv[1:])
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.settimeout(10)
client.connect(name)
try:
    client.sendall(token)
    print(client.recvmsg(64, socket.CMSG_SPACE(64))[:2])
except (BrokenPipeError, ConnectionResetError):
    print((b"", []))
"""


@pytest.mark.rule("BRK-1")
def test_brk_1_another_user_gets_nothing_even_with_the_token(broker: DescriptorBroker) -> None:
    """
    The token serves its own user only.

    Given: a process of another user that knows the token.
    When: it asks.
    Then: the end of the connection.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    token, name = broker.locator[:TOKEN_BYTES], broker.locator[TOKEN_BYTES:]
    # A system interpreter, if there is one: another user often may not start ours.
    interpreter = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    arguments = [interpreter, "-I", "-S", "-c", _AS_ANOTHER_USER, token.hex(), name.hex()]
    try:
        child = subprocess.run(arguments, user=65534, capture_output=True, text=True, timeout=30, cwd="/")
    except PermissionError:
        pytest.skip("another user may not start this interpreter")
    assert (child.stdout.strip(), child.stderr) == ("(b'', [])", "")


@pytest.mark.rule("BRK-3")
def test_brk_3_a_closed_broker_is_told_to_the_client(broker: DescriptorBroker) -> None:
    """
    A client of a broker that is gone does not wait.

    Given: a closed broker.
    When: a descriptor is asked for.
    Then: NO_DESCRIPTOR.
    """
    broker.close(10)
    with pytest.raises(BrokerError) as refusal:
        request_descriptor(broker.locator, "CUDA VMM")
    assert refusal.value.reason is Reason.NO_DESCRIPTOR


class Bug(Exception):
    """What nobody has thought of."""


@pytest.fixture
def buggy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every broker dies of the first token that it looks at."""

    def compare(*_: object) -> bool:
        raise Bug("never heard of")

    monkeypatch.setattr(hmac, "compare_digest", compare)


def assert_refused_at_once(broker: DescriptorBroker) -> None:
    started = time.monotonic()
    with pytest.raises(BrokerError) as refusal:
        request_descriptor(broker.locator, "CUDA VMM")
    assert refusal.value.reason is Reason.NO_DESCRIPTOR
    assert time.monotonic() - started < 5.0


@pytest.mark.rule("BRK-3")
@pytest.mark.usefixtures("buggy")
def test_brk_3_a_broker_that_died_says_so(broker: DescriptorBroker) -> None:
    """
    A broker that has died of an unexpected error does not silently serve nobody.

    Given: a broker whose thread dies while it serves.
    When: clients ask, one connected before and one after; and the producer wants it to serve.
    Then: the clients are refused at once; the producer is told BROKER_FAILED each time, with the cause.
    """
    with connected(broker) as early:
        assert_refused_at_once(broker)
        with contextlib.suppress(ConnectionResetError):
            assert early.recv(64) == b""
    assert_refused_at_once(broker)
    for _ in range(2):
        with pytest.raises(BrokerError, match="CUDA VMM POSIX FD broker failed: Bug: never heard of") as told:
            broker.start()
        assert (told.value.reason, told.value.rule) == (Reason.BROKER_FAILED, "BRK-3")
        assert isinstance(told.value.__cause__, Bug)


@pytest.mark.rule("BRK-3")
@pytest.mark.usefixtures("buggy")
def test_brk_3_a_broker_that_died_says_so_at_its_end_if_nobody_knew(broker: DescriptorBroker) -> None:
    """
    What nobody was told before is told at the end, once, and everything is closed all the same.

    Given: a broker that has died, and a producer that has not used it since.
    When: it is closed, and closed again.
    Then: BROKER_FAILED; then nothing; nothing is left open (the fixture counts).
    """
    assert_refused_at_once(broker)
    with pytest.raises(BrokerError) as told:
        broker.close(10)
    assert told.value.reason is Reason.BROKER_FAILED
    broker.close(10)


@pytest.mark.rule("BRK-3")
def test_brk_3_a_broker_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A process that may start no thread is told, and may try again.

    Given: a broker, and a process that has as many threads as it may have.
    When: it is started; and again when there is room.
    Then: BROKER_FAILED; then it serves.
    """
    before = open_descriptors()
    descriptor = os.memfd_create("pool", os.MFD_CLOEXEC)
    os.write(descriptor, CONTENT)
    broker = DescriptorBroker(descriptor, "CUDA VMM")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(BrokerError, match="CUDA VMM POSIX FD broker failed") as told:
            broker.start()
    assert told.value.reason is Reason.BROKER_FAILED
    broker.start()
    assert_serves(broker)
    broker.close(10)
    os.close(descriptor)
    assert open_descriptors() == before


@pytest.mark.rule("BRK-3")
def test_brk_3_a_broker_that_cannot_be_made_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    No descriptor left for the broker's own socket: the constructor says whose socket, and keeps nothing.

    Given: a process in which the last of the broker's descriptors cannot be had.
    When: a broker is made.
    Then: BROKER_FAILED, and what it had taken is given back.
    """

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    before = open_descriptors()
    monkeypatch.setattr("vmmref.broker._new_socket", refuse)
    with pytest.raises(BrokerError, match=r"CUDA VMM POSIX FD broker failed: OSError: .*too many open files") as told:
        DescriptorBroker(0, "CUDA VMM")
    assert told.value.reason is Reason.BROKER_FAILED
    assert open_descriptors() == before


@pytest.mark.rule("BRK-3")
def test_brk_3_a_fork_that_lives_on_keeps_no_client_waiting(broker: DescriptorBroker) -> None:
    """
    A helper process that inherited the socket does not make a closed broker look like one that is slow.

    Given: a broker, and a forked child that holds its socket and lives on.
    When: the broker is closed, and a descriptor is asked for.
    Then: refused at once.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of a fork with threads about, which is what this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        broker.close(10)
        assert_refused_at_once(broker)
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)


def test_close_twice_and_start_after_close_do_nothing(broker: DescriptorBroker) -> None:
    broker.close(10)
    broker.start()
    broker.close(10)


def test_a_broker_that_was_never_started_closes() -> None:
    before = open_descriptors()
    DescriptorBroker(0, "CUDA VMM").close(10)
    assert open_descriptors() == before


def _answering(message: bytes, descriptors: list[int]) -> tuple[socket.socket, bytes, threading.Thread]:
    """A broker of somebody else's, which answers its first client with what it likes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listener.settimeout(10)
    listener.bind(b"")
    listener.listen(1)

    def answer() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(64)
            socket.send_fds(client, [message], descriptors)

    thread = threading.Thread(target=answer)
    thread.start()
    return listener, bytes(listener.getsockname()), thread


@pytest.mark.parametrize(("message", "count"), [(b"\1", 0), (b"\1", 2), (b"\1", 9), (b"\2", 1)])
def test_a_broker_that_lies_leaves_nothing_open(message: bytes, count: int) -> None:
    before = open_descriptors()
    with open(os.devnull, "rb") as gift:
        listener, name, thread = _answering(message, [gift.fileno()] * count)
        with listener, pytest.raises(BrokerError) as refusal:
            request_descriptor(bytes(TOKEN_BYTES) + name, "CUDA VMM")
        thread.join(10)
    assert refusal.value.reason is Reason.NO_DESCRIPTOR
    assert open_descriptors() == before
