-- All dead letters are meant only when they are asked for by name: redrive and purge_dead take "all" now.

drop function if exists headgate.redrive(text, text, bigint[], text[], int);
drop function if exists headgate.purge_dead(text, text, bigint[], text[], int);
