-- Small batches, which are the rule, take statements for single rows.

-- An inline pack of up to 8 KB, as one small edit makes it, is one row instead of one for each 2 KB and their index. The rows that every
-- commit updates have pages with much room: PostgreSQL removes old versions of a row when a page is this full, and every reader
-- passes those that are left.
ALTER TABLE projects SET (fillfactor = 20);
ALTER TABLE writers SET (fillfactor = 20);
DO $$
BEGIN
  FOR i IN 0..7 LOOP
    EXECUTE format('ALTER TABLE tails_%s SET (toast_tuple_target = 8160)', i);
    EXECUTE format('ALTER TABLE refs_%s SET (fillfactor = 50)', i);
  END LOOP;
END $$;

-- Executes the transactions of a batch one after another: each sees what those before it did. The arguments are those of `transact`.
-- References, and packs that belong to a transaction, are in the order of the transactions.
CREATE OR REPLACE FUNCTION transact_in_order(p bigint, n bytea, g bigint, durable bool, this_batch bigint, count int,
  scopes bytea[], requested bytea[], records bytea[],
  ref_tx int[], ref_name text[], ref_old bytea[], ref_set int[], ref_new bytea[],
  pack_tx int[], pack_id bytea[], pack_objects int[], pack_bytes bigint[], pack_footer_bytes int[], pack_footer bytea[],
  pack_body bytea[]) RETURNS text LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  -- What this batch takes if nothing is refused.
  more_operations int := 0; more_numbers bigint := 0; more_packs int := cardinality(pack_id);
  next_seq bigint; next_first bigint; next_of_change bigint; of_epoch bigint;
  end_seq bigint; end_first bigint; end_of_change bigint;
  last_batch bigint; of_request bytea; of_seq bigint;
  first_ref int; ref int := 1; pack int; next_pack int := 1;
  now_value bytea; now_move bigint; values_before bytea[]; previous bigint[]; moved jsonb;
  registered text := ''; replies text := ''; reply_text text;
BEGIN
  IF NOT durable THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  FOR i IN 1..count LOOP
    IF records[i] IS NOT NULL THEN
      more_operations := more_operations + 1;
    END IF;
  END LOOP;
  FOR i IN 1..more_packs LOOP
    more_numbers := more_numbers + pack_objects[i];
  END LOOP;
  -- Locks the project.
  UPDATE projects SET next_operation = next_operation + more_operations, next_number = next_number + more_numbers,
    next_change = next_change + more_packs WHERE project = p
    RETURNING next_operation, next_number, next_change, epoch INTO end_seq, end_first, end_of_change, of_epoch;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no project %', p USING ERRCODE = 'AM002';
  END IF;
  next_seq := end_seq - more_operations;
  next_first := end_first - more_numbers;
  next_of_change := end_of_change - more_packs;
  SELECT w.batch INTO last_batch FROM nodes m
    LEFT JOIN writers w ON w.project = p AND w.node = n AND w.generation = g WHERE m.node = n AND m.generation = g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fenced' USING ERRCODE = 'AM001';
  END IF;
  IF last_batch = this_batch THEN
    UPDATE projects SET next_operation = next_seq, next_number = next_first, next_change = next_of_change WHERE project = p;
    RETURN (SELECT w.reply FROM writers w WHERE w.project = p AND w.node = n AND w.generation = g);
  END IF;
  IF last_batch > this_batch THEN
    RAISE EXCEPTION 'batch % came after batch %', this_batch, last_batch USING ERRCODE = 'AM003';
  END IF;

  FOR i IN 0..count LOOP
    IF i > 0 THEN
      first_ref := ref;
      IF scopes[i] IS NOT NULL THEN
        SELECT q.request, q.seq INTO of_request, of_seq FROM requests q WHERE q.project = p AND q.scope = scopes[i];
        IF FOUND THEN
          replies := replies || CASE WHEN of_request = requested[i] THEN ',{"replayed":' ELSE ',{"reused":' END || of_seq || '}';
          WHILE ref_tx[ref] = i LOOP
            ref := ref + 1;
          END LOOP;
          CONTINUE;
        END IF;
      END IF;
      moved := NULL;
      values_before := '{}';
      previous := '{}';
      WHILE ref_tx[ref] = i LOOP
        SELECT f.value, f.last_move INTO now_value, now_move FROM refs f WHERE f.project = p AND f.name = ref_name[ref];
        IF now_value IS DISTINCT FROM ref_old[ref] THEN
          moved := coalesce(moved, '[]')
            || jsonb_build_array(jsonb_build_array(ref_name[ref], encode(now_value, 'hex')));
        END IF;
        values_before[ref] := now_value;
        IF ref_set[ref] > 0 THEN
          previous[ref_set[ref]] := coalesce(now_move, 0);
        END IF;
        ref := ref + 1;
      END LOOP;
      IF moved IS NOT NULL THEN
        replies := replies || ',{"moved":' || moved || '}';
        CONTINUE;
      END IF;
    END IF;

    pack := CASE WHEN i = 0 THEN 1 ELSE next_pack END;
    -- All packs for those of no transaction; then those up to the transaction.
    WHILE pack <= more_packs AND (i = 0 OR pack_tx[pack] <= i) LOOP
      IF pack_tx[pack] = i THEN
        IF pack_footer[pack] IS NULL THEN
          -- A pack in the bucket needs a reserved name that was not given up.
          DELETE FROM uploads u WHERE u.project = p AND u.id = pack_id[pack] AND u.orphaned_at IS NULL;
          IF NOT FOUND THEN
            RAISE EXCEPTION 'the name of a pack was given up' USING ERRCODE = 'AM007';
          END IF;
        ELSE
          INSERT INTO tails (project, id, body) VALUES (p, pack_id[pack], pack_body[pack]);
        END IF;
        INSERT INTO packs (project, first_number, id, objects, bytes, footer_bytes, footer, epoch, change)
          VALUES (p, next_first, pack_id[pack], pack_objects[pack], pack_bytes[pack], pack_footer_bytes[pack], pack_footer[pack],
            of_epoch, next_of_change);
        registered := registered || ',[' || pack || ',' || next_first || ',' || of_epoch || ',' || next_of_change || ']';
        next_first := next_first + pack_objects[pack];
        next_of_change := next_of_change + 1;
      END IF;
      pack := pack + 1;
    END LOOP;
    IF i = 0 THEN
      CONTINUE;
    END IF;
    next_pack := pack;
    IF records[i] IS NULL THEN
      replies := replies || ',{"done":0}';
      CONTINUE;
    END IF;

    INSERT INTO operations (project, seq, record, previous) VALUES (p, next_seq, records[i], previous);
    IF scopes[i] IS NOT NULL THEN
      INSERT INTO requests (project, scope, request, seq) VALUES (p, scopes[i], requested[i], next_seq);
    END IF;
    FOR j IN first_ref..ref - 1 LOOP
      IF ref_set[j] = 0 THEN
        CONTINUE;
      ELSIF values_before[j] IS NULL THEN
        IF ref_new[j] IS NOT NULL THEN
          INSERT INTO refs (project, name, value, last_move) VALUES (p, ref_name[j], ref_new[j], next_seq);
        END IF;
      ELSIF ref_new[j] IS NULL THEN
        DELETE FROM refs f WHERE f.project = p AND f.name = ref_name[j];
      ELSE
        UPDATE refs f SET value = ref_new[j], last_move = next_seq WHERE f.project = p AND f.name = ref_name[j];
      END IF;
    END LOOP;
    replies := replies || ',{"done":' || next_seq || ',"previous":' || array_to_json(previous) || '}';
    next_seq := next_seq + 1;
  END LOOP;

  IF next_seq <> end_seq OR next_of_change <> end_of_change THEN
    UPDATE projects SET next_operation = next_seq, next_number = next_first, next_change = next_of_change WHERE project = p;
  END IF;
  reply_text := '{"epoch":' || of_epoch || ',"packs":[' || substr(registered, 2) || '],"replies":[' || substr(replies, 2) || ']}';
  UPDATE writers SET batch = this_batch, reply = reply_text WHERE project = p AND node = n AND generation = g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'node of generation % has not joined project %', g, p USING ERRCODE = 'AM001';
  END IF;
  RETURN reply_text;
END $$;
