"""What every command shares: the version, the header of JSON reports, and files that are checked before work starts."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from pathlib import Path
from typing import Any

from vmmref.cli import UsageError


def version() -> str:
    """The version of vmmref."""
    from vmmref import __version__

    return __version__


def package_version(name: str) -> str | None:
    """Version of an installed distribution, or None; does not import it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def header(device: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields that all JSON reports share."""
    shown: dict[str, Any] = {"name": None, "simulated": None, "driver": None}
    shown.update(device or {})
    shown["bindings"] = package_version("cuda-bindings")
    shown["torch"] = package_version("torch")
    return {"tool": {"name": "vmmref", "version": version()}, "device": shown}


def check_writable(path: Path | None, option: str) -> None:
    """Raise UsageError now if a report could not be written later; makes no file that was not there."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise UsageError(f'{option} "{path}" is a folder, not a file')
    if not folder.is_dir():
        raise UsageError(f'{option} "{path}": there is no folder "{folder}"')
    target = path if path.exists() else folder
    if not os.access(target, os.W_OK):
        raise UsageError(f'{option} "{path}" cannot be written')


def write_json(path: Path | None, report: dict[str, Any]) -> None:
    """Write a report, replacing the file in one step."""
    if path is not None:
        write_text(path, json.dumps(report, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old one or the new one, never half of one; raises UsageError.

    What is no regular file, a device or a pipe, is written to and not replaced; a link stays a link.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    except OSError as error:
        raise UsageError(f'"{path}" cannot be written: {error.strerror or error}') from error
