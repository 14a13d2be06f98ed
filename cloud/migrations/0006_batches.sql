-- A batch of transactions in a fixed number of statements, however many they are.

-- The transactions of a batch one after another: each sees what those before it did. Kept for batches in which two concern one reference
-- or one request.
ALTER FUNCTION transact(bigint, bytea, bigint, bool, bigint, int, bytea[], bytea[], bytea[], int[], text[], bytea[], int[], bytea[],
  int[], bytea[], int[], bigint[], int[], bytea[], bytea[]) RENAME TO transact_in_order;

-- Executes a batch of transactions: compares references, numbers operations without a gap, moves references. The arguments and the reply
-- are those of `transact_in_order`.
--
-- Generic plans, because the tables are partitioned: PostgreSQL would plan every statement anew for the sake of one partition, which
-- takes longer than its execution.
CREATE FUNCTION transact(p bigint, n bytea, g bigint, durable bool, this_batch bigint, count int,
  scopes bytea[], requested bytea[], records bytea[],
  ref_tx int[], ref_name text[], ref_old bytea[], ref_set int[], ref_new bytea[],
  pack_tx int[], pack_id bytea[], pack_objects int[], pack_bytes bigint[], pack_footer_bytes int[], pack_footer bytea[],
  pack_body bytea[]) RETURNS text LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  pr projects; last_batch bigint; r record;
  -- For each transaction: the reply if it is refused, or else its number if it has a record.
  refused jsonb[] := array_fill(NULL::jsonb, ARRAY[count]);
  seqs bigint[] := array_fill(NULL::bigint, ARRAY[count]);
  -- For each reference: its value and the operation that moved it.
  now_value bytea[]; now_move bigint[];
  -- For each pack that is registered: its first number and its change.
  firsts bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(pack_id)]);
  changes bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(pack_id)]);
  stored int := 0; removed int; has_inline bool := false; has_removals bool := false; has_requests bool := false;
  registered jsonb := '[]'; replies jsonb; reply_text text;
BEGIN
  IF count > 1 AND (
    (SELECT count(*) <> count(DISTINCT e.name) FROM unnest(ref_name) e(name))
    OR (SELECT count(e.scope) <> count(DISTINCT e.scope) FROM unnest(scopes) e(scope))) THEN
    RETURN transact_in_order(p, n, g, durable, this_batch, count, scopes, requested, records, ref_tx, ref_name, ref_old, ref_set,
      ref_new, pack_tx, pack_id, pack_objects, pack_bytes, pack_footer_bytes, pack_footer, pack_body);
  END IF;
  IF NOT durable THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  SELECT * INTO pr FROM projects WHERE project = p FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no project %', p USING ERRCODE = 'AM002';
  END IF;
  SELECT w.batch INTO last_batch FROM nodes m
    LEFT JOIN writers w ON w.project = p AND w.node = n AND w.generation = g WHERE m.node = n AND m.generation = g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fenced' USING ERRCODE = 'AM001';
  END IF;
  IF last_batch = this_batch THEN
    RETURN (SELECT w.reply FROM writers w WHERE w.project = p AND w.node = n AND w.generation = g);
  END IF;
  IF last_batch > this_batch THEN
    RAISE EXCEPTION 'batch % came after batch %', this_batch, last_batch USING ERRCODE = 'AM003';
  END IF;

  FOR i IN 1..count LOOP
    has_requests := has_requests OR scopes[i] IS NOT NULL;
  END LOOP;
  IF has_requests THEN
    FOR r IN SELECT e.tx, q.request, q.seq FROM unnest(scopes) WITH ORDINALITY e(scope, tx)
      JOIN requests q ON q.project = p AND q.scope = e.scope
    LOOP
      refused[r.tx] := CASE WHEN r.request = requested[r.tx] THEN jsonb_build_object('replayed', r.seq)
        ELSE jsonb_build_object('reused', r.seq) END;
    END LOOP;
  END IF;
  SELECT array_agg(f.value ORDER BY e.at), array_agg(coalesce(f.last_move, 0) ORDER BY e.at) INTO now_value, now_move
    FROM unnest(ref_name) WITH ORDINALITY e(name, at) LEFT JOIN refs f ON f.project = p AND f.name = e.name;
  FOR i IN 1..cardinality(ref_name) LOOP
    has_removals := has_removals OR (ref_set[i] > 0 AND ref_new[i] IS NULL);
    IF now_value[i] IS DISTINCT FROM ref_old[i] AND NOT coalesce(refused[ref_tx[i]] ?| ARRAY['replayed', 'reused'], false) THEN
      refused[ref_tx[i]] := jsonb_build_object('moved', coalesce(refused[ref_tx[i]] -> 'moved', '[]')
        || jsonb_build_array(jsonb_build_array(ref_name[i], encode(now_value[i], 'hex'))));
    END IF;
  END LOOP;
  FOR i IN 1..count LOOP
    IF refused[i] IS NULL AND records[i] IS NOT NULL THEN
      seqs[i] := pr.next_operation;
      pr.next_operation := pr.next_operation + 1;
    END IF;
  END LOOP;

  FOR i IN 1..cardinality(pack_id) LOOP
    IF pack_tx[i] = 0 OR refused[pack_tx[i]] IS NULL THEN
      firsts[i] := pr.next_number;
      changes[i] := pr.next_change;
      pr.next_number := pr.next_number + pack_objects[i];
      pr.next_change := pr.next_change + 1;
      registered := registered || jsonb_build_array(jsonb_build_array(i, firsts[i], pr.epoch, changes[i]));
      IF pack_footer[i] IS NULL THEN
        stored := stored + 1;
      ELSE
        has_inline := true;
      END IF;
    END IF;
  END LOOP;
  IF stored > 0 THEN
    -- A pack in the bucket needs a reserved name that was not given up.
    DELETE FROM uploads u USING unnest(pack_id, pack_footer, firsts) e(id, footer, first)
      WHERE e.footer IS NULL AND e.first IS NOT NULL AND u.project = p AND u.id = e.id AND u.orphaned_at IS NULL;
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed <> stored THEN
      RAISE EXCEPTION 'the name of a pack was given up' USING ERRCODE = 'AM007';
    END IF;
  END IF;
  IF has_inline THEN
    INSERT INTO tails (project, id, body)
      SELECT p, e.id, e.body FROM unnest(pack_id, pack_footer, pack_body, firsts) e(id, footer, body, first)
      WHERE e.footer IS NOT NULL AND e.first IS NOT NULL;
  END IF;
  IF stored > 0 OR has_inline THEN
    INSERT INTO packs (project, first_number, id, objects, bytes, footer_bytes, footer, epoch, change)
      SELECT p, e.first, e.id, e.objects, e.bytes, e.footer_bytes, e.footer, pr.epoch, e.change
      FROM unnest(pack_id, pack_objects, pack_bytes, pack_footer_bytes, pack_footer, firsts, changes)
        e(id, objects, bytes, footer_bytes, footer, first, change)
      WHERE e.first IS NOT NULL;
  END IF;

  WITH before AS (
    SELECT e.tx, array_agg(e.move ORDER BY e.set_at) AS previous
      FROM unnest(ref_tx, ref_set, now_move) e(tx, set_at, move) WHERE e.set_at > 0 GROUP BY e.tx
  ), done AS (
    INSERT INTO operations (project, seq, record, previous)
      SELECT p, t.seq, t.record, coalesce(b.previous, '{}') FROM unnest(seqs, records) WITH ORDINALITY t(seq, record, tx)
      LEFT JOIN before b ON b.tx = t.tx WHERE t.seq IS NOT NULL
  )
  SELECT coalesce(jsonb_agg(CASE WHEN t.why IS NOT NULL THEN t.why WHEN t.seq IS NULL THEN jsonb_build_object('done', 0)
      ELSE jsonb_build_object('done', t.seq, 'previous', coalesce(b.previous, '{}')) END ORDER BY t.tx), '[]') INTO replies
    FROM unnest(seqs, refused) WITH ORDINALITY t(seq, why, tx) LEFT JOIN before b ON b.tx = t.tx;
  IF has_requests THEN
    INSERT INTO requests (project, scope, request, seq)
      SELECT p, e.scope, e.request, e.seq FROM unnest(scopes, requested, seqs) e(scope, request, seq)
      WHERE e.scope IS NOT NULL AND e.seq IS NOT NULL;
  END IF;
  IF has_removals THEN
    DELETE FROM refs f USING unnest(ref_tx, ref_name, ref_set, ref_new) e(tx, name, set_at, value)
      WHERE e.set_at > 0 AND e.value IS NULL AND seqs[e.tx] IS NOT NULL AND f.project = p AND f.name = e.name;
  END IF;
  INSERT INTO refs (project, name, value, last_move)
    SELECT p, e.name, e.value, seqs[e.tx] FROM unnest(ref_tx, ref_name, ref_set, ref_new) e(tx, name, set_at, value)
    WHERE e.set_at > 0 AND e.value IS NOT NULL AND seqs[e.tx] IS NOT NULL
    ON CONFLICT (project, name) DO UPDATE SET value = excluded.value, last_move = excluded.last_move;
  UPDATE projects SET next_operation = pr.next_operation, next_number = pr.next_number, next_change = pr.next_change
    WHERE project = p;
  reply_text := jsonb_build_object('epoch', pr.epoch, 'packs', registered, 'replies', replies)::text;
  UPDATE writers SET batch = this_batch, reply = reply_text WHERE project = p AND node = n AND generation = g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'node of generation % has not joined project %', g, p USING ERRCODE = 'AM001';
  END IF;
  RETURN reply_text;
END $$;

-- The other functions on the path of a write, for the same reason.
ALTER FUNCTION transact_in_order(bigint, bytea, bigint, bool, bigint, int, bytea[], bytea[], bytea[], int[], text[], bytea[], int[],
  bytea[], int[], bytea[], int[], bigint[], int[], bytea[], bytea[]) SET plan_cache_mode = force_generic_plan;
ALTER FUNCTION register_packs(bigint, bytea, bigint, bytea[], int[], bigint[], int[], bytea[], bytea[])
  SET plan_cache_mode = force_generic_plan;
ALTER FUNCTION stamp_objects(bigint, bytea, bigint, bigint, bigint[], int[]) SET plan_cache_mode = force_generic_plan;
ALTER FUNCTION write_live_tree(bigint, bytea, bigint, bigint, bigint, text[], text[], bigint[], bytea[])
  SET plan_cache_mode = force_generic_plan;
