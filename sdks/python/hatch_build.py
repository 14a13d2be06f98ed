"""Lets a wheel carry the ``amalgam`` program: ``AMALGAM_WHEEL_PROGRAM`` names it. Without it the wheel is pure Python.
``amalgam-agent`` beside the program, which sandboxes need, is carried, too.

The tag of such a wheel says which machine and which C library the program needs, as that of the building machine.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProgramHook(BuildHookInterface[Any]):
    """Puts the program beside the scripts of the environment."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the program to a wheel."""
        program = os.environ.get("AMALGAM_WHEEL_PROGRAM")
        if not program or self.target_name != "wheel" or version == "editable":
            return
        if not os.access(program, os.X_OK):
            raise ValueError(f"AMALGAM_WHEEL_PROGRAM is {program}, which is no program")
        library, number = platform.libc_ver()
        if library != "glibc":
            raise ValueError("a wheel with the program can be built on a machine with glibc only")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{number.replace('.', '_')}_{platform.machine()}"
        build_data["shared_scripts"] = {program: "amalgam"}
        # A server starts the agent of its sandboxes from the directory of the program.
        agent = os.path.join(os.path.dirname(program), "amalgam-agent")
        if os.access(agent, os.X_OK):
            build_data["shared_scripts"][agent] = "amalgam-agent"
