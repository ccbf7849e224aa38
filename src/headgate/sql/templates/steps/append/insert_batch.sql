-- insert_batch: the insert of append_<stream id>, which append_cold executes, too. Seqs are drawn
-- in the statement that inserts, so that the table is locked before (late transactions are told by
-- that), and nothing is inserted when others have drawn so many at the same moment that they reach
-- `p_end`, where the segments that the caller knows of end: then append_beyond has to.
-- Gives: the seqs; in r, where it is pasted `into`.
-- Writes: message_<stream id>.
with q as materialized (
  select array_agg(nextval('headgate.seq_{stream}')) as seqs
    from generate_series(1, cardinality(p_datas))),
i as (
  insert into headgate.message_{stream} (seq, xid, lane, key, data, headers,
                                         deliver_at{channel_column})
    select s, p_xid, {lane}, k, d, h,
           case when w is not null then clock_timestamp() + w end{channel_value}
      from q,
           unnest(p_keys, p_datas, p_headers, p_delays, seqs{channel_parameter})
             t (k, d, h, w, s{channel_value})
     where seqs[cardinality(p_datas)] < p_end)
select seqs
  {if into} into r
  from q
