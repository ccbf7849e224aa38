"""What all screens have: a head that says where and whether it answers, a line for what is said, and the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Footer, Static

from ..sync import Headgate
from ..types import ConsumerInfo
from . import actions
from .actions import Action
from .figures import clean

if TYPE_CHECKING:
    from .app import Observe

T = TypeVar("T")

BACK = Binding("escape,q", "app.pop_screen", "Back")


class Live(Screen[None], Generic[T]):
    """A screen that shows what `look` saw; the app looks again and again while it is on top."""

    where = ""  # the way here, in the head

    @property
    def observe(self) -> Observe:
        """The app."""
        return cast("Observe", self.app)

    def compose(self) -> ComposeResult:
        with Horizontal(id="head"):
            yield Static(id="place")
            yield Static(id="state")
        yield from self.body()
        yield Static(id="note")
        yield Footer(show_command_palette=False)

    def body(self) -> ComposeResult:
        """What stands between head and note."""
        raise NotImplementedError

    def look(self, hg: Headgate) -> T:
        """Looks; in a thread, so nothing of the screen is touched."""
        raise NotImplementedError

    def show(self, seen: T) -> None:
        """Shows what was seen."""
        raise NotImplementedError

    def actions(self) -> dict[str, Action | str]:
        """What may be done with what is chosen, by key; a sentence where nothing can be."""
        return {}

    def on_mount(self) -> None:
        self.tick()

    def tick(self) -> None:
        """The head anew, each second."""
        state = self.observe.state()
        room = max(10, self.app.size.width - cell_len(state.plain) - 3)
        place = clean(f"headgate observe  {self.observe.place}")
        text = Text(f"{place}  {self.where}" if self.where else place, no_wrap=True, overflow="ellipsis")
        text.truncate(room, overflow="ellipsis")
        self.query_one("#place", Static).update(text)
        self.query_one("#state", Static).update(state)
        self.query_one("#note", Static).update(self.observe.note)


def consumer_actions(info: ConsumerInfo) -> dict[str, Action | str]:
    """What may be done with a consumer as a whole."""
    dead = actions.redrive(info) if info.dead else f"{clean(info.name)} has no dead letters"
    return {"p": actions.pause(info), "d": dead}


def facts(*pairs: tuple[str, Any]) -> Text:
    """Names and values in a line that wraps."""
    made = Text()
    for name, value in pairs:
        if value not in (None, ""):
            made.append(f"{name} ", "dim")
            made.append_text(value if isinstance(value, Text) else Text(clean(value), "bold"))
            made.append("   ")
    return made
