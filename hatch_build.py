"""Build hook: compile the simulated driver into the wheel, or into the source tree of an editable install."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WITHOUT_SIMULATOR = "VMMREF_WITHOUT_SIMULATOR"
"""Set to 1 to install on a machine without a C compiler, for real devices only."""

PACKAGE = "vmmref/simcuda"


class SimulatorBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles libcuda.so.1 next to its Python package."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build for a wheel (version "standard") or an editable install ("editable"); sources need nothing."""
        if self.target_name != "wheel":
            return
        if os.environ.get(WITHOUT_SIMULATOR) == "1":
            self.app.display_warning(f"{WITHOUT_SIMULATOR}=1: installing without the simulated driver")
            return
        package = Path(self.root) / PACKAGE
        recipe = _load(package / "build.py")
        try:
            library = recipe.build(package)
        except recipe.SimulatorBuildError as error:
            raise RuntimeError(f"{error}\n(or set {WITHOUT_SIMULATOR}=1 to install for real devices only)") from error
        if version == "editable":
            return
        build_data["force_include"][str(library)] = f"{PACKAGE}/{library.name}"
        build_data["pure_python"] = False
        # The library depends on the machine, not on the version of Python.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


def _load(path: Path) -> ModuleType:
    """The build recipe by its path, without importing the package, whose dependencies are not there yet."""
    spec = importlib.util.spec_from_file_location("vmmref_simcuda_build", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"the build recipe {path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
