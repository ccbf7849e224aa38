"""The presets that there are: each is about one part of the engine, or one kind of fault."""

from __future__ import annotations

from .preset import Preset
from .storage import STORAGE
from .traffic import TRAFFIC
from .trouble import TROUBLE

PRESETS: dict[str, Preset] = {preset.name: preset for preset in (*TRAFFIC, *STORAGE, *TROUBLE)}
