"""The judge of upsert streams: of a key only the newest version counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..record import Event
from .choosing import discards
from .reading import ACKING, ConsumerHistory, Log, Violation


def older_version(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """5: a version came after a newer one of its key had been acked."""
    if not reading.preset.upsert:
        return
    acked: dict[str, list[tuple[int, Event]]] = defaultdict(list)
    for seq, acks in reading.acks.items():
        for handed, ack in acks:
            if ack.happened and handed.message.key is not None:
                acked[handed.message.key].append((seq, ack))
    for seq, all_handed in reading.handed.items():
        for handed in all_handed:
            event = handed.event
            newer = [(s, a) for s, a in acked[handed.message.key or ""] if s > seq and a.seen_by < event.called]
            if newer:
                s, ack = newer[0]
                yield Violation(
                    "an older version after a newer one",
                    f"version {seq} of key {handed.message.key} came to {event.session} at {event.called:.3f}; "
                    f"the newer {s} had been acked at {ack.seen_by:.3f}",
                    event.called,
                    reading.plan.name,
                    (seq, s),
                    (ack, event),
                )
                break


def wrong_value(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """5: what the consumer knows of a key in the end is not what its only writer wrote last."""
    if not reading.preset.upsert or reading.plan.max_deliver is not None:
        return
    history = reading.history
    used: set[str] = set()
    values: dict[str, tuple[str, Event]] = {}
    for event in sorted((e for e in history.events if e.kind == "send" and e.happened), key=lambda e: e.called):
        for sent in event.asked["messages"]:
            if sent.id is not None and sent.id in used:
                continue
            used.update({sent.id} if sent.id else ())
            if sent.key is not None and event.session in sent.key:
                values[sent.key] = (sent.data, event)
    known: dict[str, tuple[int, str]] = {}
    for seq, acks in reading.acks.items():
        for handed, ack in acks:
            if ack.happened and seq >= known.get(handed.message.key or "", (0, ""))[0]:
                known[handed.message.key or ""] = (seq, handed.message.data)
    unsure = {s.key for e in history.events if e.kind == "send" and e.unknown for s in e.asked["messages"]}
    perhaps = {  # what it may know as well
        (handed.message.key, handed.message.data)
        for seq, all_handed in reading.handed.items()
        for handed in all_handed
        if seq > known.get(handed.message.key or "", (0, ""))[0]
        and any(e.possible and e.kind in ACKING for e in handed.settled)
    }
    for key, (data, event) in values.items():
        if key in known and known[key][1] != data and key not in unsure and (key, data) not in perhaps:
            if was_discarded(reading, log, key):
                continue
            yield Violation(
                "not the last value",
                f"key {key} was last given {data} by {event.session} at {event.called:.3f}; the consumer's last "
                f"version, {known[key][0]}, says {known[key][1]}",
                history.drained_at,
                reading.plan.name,
                tuple(m.seq for m in log.values() if m.sent.key == key)[-6:],
                (event,),
            )


def was_discarded(reading: ConsumerHistory, log: Log, key: str) -> bool:
    """Whether the newest version of a key may have been discarded: then the consumer keeps the one before."""
    newest = max((m for m in log.values() if m.sent.key == key), key=lambda m: m.seq)
    return any(e.effective and discards(e, newest) for e in reading.of("discard"))


def wrong_append(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """5: of a key with one writer, a send that repeats an id or the value was appended, or a change was not."""
    if not reading.preset.upsert or reading.preset.stream.get("retain", "forever") != "forever":
        return
    if any(e.kind == "send" and e.unknown for e in reading.history.events):
        return
    used: set[str] = set()
    newest: dict[str, tuple[int, str]] = {}
    sends = [e for e in reading.history.events if e.kind == "send" and e.happened]
    for event in sorted(sends, key=lambda e: e.called):
        for sent, seq in zip(event.asked["messages"], event.answer, strict=True):
            if sent.key is None or event.session not in sent.key:
                continue
            last, value = newest.get(sent.key, (0, ""))
            repeats = sent.id in used or sent.data == value
            used.update({sent.id} if sent.id else ())
            if repeats != (seq <= last):
                what = (
                    "repeats an id or the value, and was appended" if repeats else "is a change, and was not appended"
                )
                text = f"{event.session}'s send at {event.called:.3f} of {sent.data} (id {sent.id}) {what}: seq {seq}"
                yield Violation("wrongly appended", text, event.called, None, (seq, last), (event,))
            if seq > last:
                newest[sent.key] = (seq, sent.data)
