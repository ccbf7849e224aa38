"""Messages that a consumer is to get again, or now."""

from __future__ import annotations

from ..http.call import Call
from ..http.routing import Routes
from .answers_messages import Replayed, Retried
from .consumers import CONSUMER_PATH
from .requests import ToReplay, ToRetry

routes = Routes()


@routes.route("POST", CONSUMER_PATH + "/retry", scope="admin", body=ToRetry, answer=Retried)
async def retry_messages(call: Call) -> Retried:
    """Makes parked messages due at once: these seqs, or `{"all": true}`."""
    chosen: ToRetry = call.body
    consumer = await call.server.consumer(call.stream, call.consumer)
    count = await consumer.retry_now(chosen.seqs, all=chosen.all)
    call.server.polling.stirred(call.stream, call.consumer, count)
    return Retried(count)


@routes.route("POST", CONSUMER_PATH + "/replay", scope="admin", body=ToReplay, answer=Replayed)
async def replay_messages(call: Call) -> Replayed:
    """Hands messages to a consumer again, which does not move; at most 10,000 a call."""
    chosen: ToReplay = call.body
    consumer = await call.server.consumer(call.stream, call.consumer)
    done = await consumer.replay(
        seqs=chosen.seqs,
        from_seq=chosen.from_seq,
        to_seq=chosen.to_seq,
        from_time=chosen.from_time,
        to_time=chosen.to_time,
        filter=chosen.filter,
    )
    call.server.polling.stirred(call.stream, call.consumer, done.replayed)
    return Replayed(done.replayed, done.not_found, done.passed_over, done.next_seq)
