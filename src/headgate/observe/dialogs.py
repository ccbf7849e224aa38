"""What opens above a screen: the keys, and a question before something is done."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from .actions import Action

KEYS = (
    ("Look", (
        ("1 to 5, Tab", "consumers, streams, messages, tenants, sources"),
        ("↑ ↓ PgUp PgDn", "move"),
        ("Enter", "open: a stream, a consumer, a message, a source"),
        ("Esc", "back; clears the filter"),
        ("s", "sort by the next figure"),
        ("/", "filter by a part of a name"),
        ("Space", "freeze, and go on"),
        ("r", "look now"),
    )),
    ("Act (each asks first)", (
        ("p", "pause or resume the consumer or source"),
        ("d", "redrive dead letters: all, or the one chosen"),
        ("t", "try a parked message again now"),
    )),
    ("Else", (("l", "light or dark"), ("?", "this"), ("q", "end"))),
)  # fmt: skip

WORDS = (
    ("lost", "retention removed what it was not done with"),
    ("stuck", "messages wait, nobody receives"),
    ("failing", "a message has failed three times and more"),
    ("behind", "the oldest has waited for longer than a minute"),
    ("dead", "there are dead letters"),
    ("paused", "somebody paused it"),
)


class Ask(ModalScreen[bool]):
    """A question before something is done."""

    BINDINGS: ClassVar[list[Any]] = [("y", "answer(True)", "Yes"), ("n,escape,q", "answer(False)", "No")]

    def __init__(self, action: Action) -> None:
        super().__init__()
        self.action = action

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Text(self.action.question, "bold"))
            yield Static(Text(f"\n{self.action.about}\n"))
            yield Static(Text.assemble(("y", "bold"), "  yes      ", ("n", "bold"), "  no"))

    def action_answer(self, is_wanted: bool) -> None:
        """Answers it."""
        self.dismiss(is_wanted)


class Help(ModalScreen[None]):
    """The keys, and the words of trouble."""

    BINDINGS: ClassVar[list[Any]] = [("escape,q,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        text = Text()
        for title, keys in KEYS:
            text.append(f"{title}\n", "bold underline")
            for key, what in keys:
                text.append(f"  {key:<14}", "bold cyan").append(f"{what}\n")
            text.append("\n")
        text.append("Words of trouble\n", "bold underline")
        for word, what in WORDS:
            text.append(f"  {word:<14}", "bold").append(f"{what}\n")
        with VerticalScroll(classes="box keys"):
            yield Static(text)
