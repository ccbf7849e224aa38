"""Has a Chromium for the tests of the console: installs Debian's where there is none, if it may. Never fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    """Install it; without it, the tests that need it are skipped and say so."""
    if any(map(shutil.which, NAMES)) or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return 0
    print("Installing Chromium, once, for the tests of the console", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        done = subprocess.run(["apt-get", "-q", *step], env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            print("Chromium could not be installed: the tests of the console in a browser are skipped", file=sys.stderr)
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
