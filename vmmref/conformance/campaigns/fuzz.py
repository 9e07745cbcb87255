"""Coverage-guided fuzzing of everything that parses bytes from another process.

    python -m vmmref.conformance.campaigns.fuzz wire|broker [--seconds 600] [--seed 1] [--corpus FOLDER]

"wire": the wire forms of proxies, as they are and with a right checksum. "broker": what connections say to a serving
broker, several at a time. What must hold of any input is in `claims`; the first input for which it does not is saved
as FOLDER/crash-… and shown. Needs atheris, which is no dependency of vmmref.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Nothing of vmmref here: only what is imported later, under atheris, is seen by it.

DESCRIPTION = "Coverage-guided fuzzing of everything that parses bytes from another process."
CONTENT = b"the pool's memory"
_LONGEST_INPUT_BYTES = 2048
_MOST_CONNECTIONS, _MOST_MESSAGES = 6, 4
_MOST_ALLOCATED_MIB = 64
"""For one allocation: what an input makes us allocate is bounded by its own length."""
_MOST_RESIDENT_MIB = 2048
_SAID = ("token", "noise", "cut", "longer", "flipped")


def fuzz_wire(folder: Path) -> Callable[[bytes], None]:
    """Writes first inputs into `folder`; what to do with an input: its first byte says whether it is sealed."""
    from vmmref.conformance.campaigns.claims import bodies, claim_of_proxy_bytes, seal

    for number, body in enumerate(bodies()):
        (folder / f"body-{number}").write_bytes(b"\1" + body)
        (folder / f"proxy-{number}").write_bytes(b"\0" + seal(body))

    def check(data: bytes) -> None:
        body = data[1:]
        claim_of_proxy_bytes(seal(body) if data[:1] == b"\1" else body)

    return check


def fuzz_broker(folder: Path) -> Callable[[bytes], None]:
    """Starts a broker; what to do with an input: it draws what connections say, and an honest one comes last."""
    from vmmref.broker import TOKEN_BYTES, DescriptorBroker
    from vmmref.conformance.campaigns.claims import claim_of_requests

    descriptor = os.memfd_create("pool", os.MFD_CLOEXEC)
    os.write(descriptor, CONTENT)
    broker = DescriptorBroker(descriptor, "CUDA VMM")
    broker.start()
    token = broker.locator[:TOKEN_BYTES]
    before = len(os.listdir("/proc/self/fd"))
    for number in range(8):
        (folder / f"requests-{number}").write_bytes(random.Random(number).randbytes(300))

    def check(data: bytes) -> None:
        requests = drawn_requests(data, token)
        assert claim_of_requests(broker.locator, CONTENT, [*requests, [token]]) >= 1, "an honest client got nothing"
        after = len(os.listdir("/proc/self/fd"))
        # One that has only just been closed may not have been noticed yet.
        assert after <= before + len(requests) + 1, f"{after} descriptors, {before} before"
        broker.start()

    return check


def drawn_requests(data: bytes, token: bytes) -> list[list[bytes]]:
    """What some connections say, message by message."""
    from atheris import FuzzedDataProvider

    provider = FuzzedDataProvider(data)
    requests = []
    for _ in range(provider.ConsumeIntInRange(0, _MOST_CONNECTIONS)):
        count = provider.ConsumeIntInRange(0, _MOST_MESSAGES)
        requests.append([_message(provider, token) for _ in range(count)])
    return requests


def _message(provider: Any, token: bytes) -> bytes:
    said = provider.PickValueInList(list(_SAID))
    noise = bytes(provider.ConsumeBytes(provider.ConsumeIntInRange(0, 100)))
    if said == "token":
        return token
    if said == "noise":
        return noise
    if said == "cut":
        return token[: provider.ConsumeIntInRange(0, len(token))]
    if said == "longer":
        return token + noise
    changed = bytearray(token)
    changed[provider.ConsumeIntInRange(0, len(token) - 1)] ^= 1 << provider.ConsumeIntInRange(0, 7)
    return bytes(changed)


TARGETS = {"wire": fuzz_wire, "broker": fuzz_broker}


def fuzz(target: str, seconds: int, seed: int, corpus: Path) -> None:
    """Fuzz until the time is over, which ends this process: with status 0, or another one and the input that failed."""
    import atheris

    corpus.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=["vmmref"]):
        check = TARGETS[target](corpus)
    atheris.Setup(
        [
            sys.argv[0], f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={_LONGEST_INPUT_BYTES}",
            f"-malloc_limit_mb={_MOST_ALLOCATED_MIB}", f"-rss_limit_mb={_MOST_RESIDENT_MIB}", "-timeout=30",
            f"-artifact_prefix={corpus}/", "-print_final_stats=1",
            # A well-formed input has no branch to itself that shorter bad ones together have not: keep it all the same.
            "-keep_seed=1", "-reduce_inputs=0", str(corpus),
        ],
        check,
    )  # fmt: skip
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    """Fuzz one target; 2 where atheris is missing. Otherwise the process ends with the fuzzer's own status."""
    parser = argparse.ArgumentParser(prog="python -m vmmref.conformance.campaigns.fuzz", description=DESCRIPTION)
    parser.add_argument("target", choices=tuple(TARGETS))
    parser.add_argument("--seconds", type=int, default=600, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations")
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="where inputs are kept from run to run")
    options = parser.parse_args(arguments)
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("atheris is not installed: pip install atheris (Linux, Python 3.11 to 3.13)", file=sys.stderr)
        return 2
    corpus = options.corpus or Path(tempfile.gettempdir()) / f"vmmref-fuzz-{options.target}"
    fuzz(options.target, options.seconds, options.seed, corpus)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
