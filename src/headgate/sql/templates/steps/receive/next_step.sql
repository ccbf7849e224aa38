-- next_step: the call at the next step that receive_<stream id> has to do. With `lets_go` a lane is
-- a subtransaction.
-- Needs: r, the call, and `got`, what its last step has handed out.
headgate.receive_step(
  r, got, {stream}, 'headgate.seq_{stream}', {is_upsert},
  {if lets_go} true,
  {if not lets_go} false,
  p_consumer, n, p_worker, acks, open, p_ack_wait)
