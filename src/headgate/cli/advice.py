"""The doctor's advice as commands: the engine writes it as SQL."""

from __future__ import annotations

import re
import shlex

COMMANDS = {
    "alter_consumer": "consumer edit",
    "alter_stream": "stream edit",
    "dead_letters": "dead list",
    "discard": "discard",
    "drop_archive": "stream drop-archive",
    "drop_consumer": "consumer remove",
    "redrive": "dead redrive",
    "resume": "consumer resume",
    "retry_now": "retry",
    "seek": "consumer seek",
}
_CALL = re.compile(r"select (?:\* from )?headgate\.(\w+)\(((?:'(?:[^']|'')*'|[^()'])*)\);?")
_ARGUMENT = re.compile(
    r"""(?:"?(?P<name>\w+)"?\s*=>\s*)?(?:'(?P<text>(?:[^']|'')*)'|array\[(?P<seqs>[\d,\ ]*)\]|(?P<word>\w+))"""
)
_LENGTH = re.compile(r"(?:(\d+) days?)? ?(?:(\d+):(\d\d):(\d\d)(?:\.\d+)?)?")


def as_commands(advice: str) -> str:
    """Advice with its calls of the engine as commands; what has none stays SQL."""
    return _CALL.sub(_command, advice)


def _command(call: re.Match[str]) -> str:
    if call[1] not in COMMANDS:
        return call[0]
    words = ["headgate", *COMMANDS[call[1]].split()]
    for found in _ARGUMENT.finditer(call[2]):
        text = found["text"].replace("''", "'") if found["text"] is not None else found["word"] or ""
        if found["name"]:
            words.append("--" + found["name"].replace("_", "-"))
            if text and (length := _LENGTH.fullmatch(text)):
                days, hours, minutes, seconds = (int(part or 0) for part in length.groups())
                rest = hours * 3600 + minutes * 60 + seconds
                text = f"{days}d" if not rest else f"{days * 86400 + rest}s"
        if found["seqs"] is not None:
            option = [] if call[1] == "retry_now" else ["--seq"]
            words += [word for seq in found["seqs"].split(",") for word in (*option, seq.strip())]
        elif text != "true" or not found["name"]:
            words.append(text)
    return f"`{shlex.join(words)}`"
