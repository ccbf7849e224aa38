-- What retention removed, to the message: the unused seqs at the end of a segment that was closed early are not missing to anybody.

alter table headgate.stream add removed_to bigint not null default 0;  -- the highest seq of a message that went with its segment
update headgate.stream s set removed_to = coalesce(upper(int8multirange(int8range(1, (select max(g.end_seq) from headgate.segment g where g.stream = s.id)))
  - (select range_agg(int8range(g.first_seq, g.end_seq)) from headgate.segment g where g.stream = s.id and g.state <> 'dropped')) - 1, 0);
