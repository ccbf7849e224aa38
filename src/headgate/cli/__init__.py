"""The command line: thin over the SDK. A module for each noun, and `call.py` for what all commands share.

A command is a function of a Call and its arguments that returns an exit code (None: done). `app.py` says which module
has which command: it is loaded when the command is used.
"""

from __future__ import annotations

from .app import app, main

__all__ = ["app", "main"]
