-- The state of a store that moves: references, operations, requests, the states of packs, epochs, nodes. No row per object.

-- Unlogged on purpose: PostgreSQL empties it after a crash and on a promoted standby, that is, exactly when it may have lost the
-- newest buffered commits. Every node is then fenced. After a clean restart it is whole.
CREATE UNLOGGED TABLE nodes (
  node bytea PRIMARY KEY,
  generation bigint NOT NULL,
  expires timestamptz NOT NULL
);
CREATE SEQUENCE node_generations;

CREATE TABLE projects (
  project bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  next_operation bigint NOT NULL DEFAULT 1,
  first_operation bigint NOT NULL DEFAULT 1,
  -- The number of the next object. A pack takes a range of them when it is registered.
  next_number bigint NOT NULL DEFAULT 0,
  -- Every change of packs, graves and marks takes the next one; nodes follow them.
  next_change bigint NOT NULL DEFAULT 1,
  epoch bigint NOT NULL DEFAULT 1,
  collector bytea,
  collector_token bigint NOT NULL DEFAULT 0,
  collector_expires timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- The nodes that have a project open.
CREATE TABLE writers (
  project bigint NOT NULL,
  node bytea NOT NULL,
  generation bigint NOT NULL,
  -- The last batch of transactions and its reply: a batch whose answer was lost is sent again and not executed twice.
  batch bigint NOT NULL DEFAULT 0,
  reply text NOT NULL DEFAULT '',
  PRIMARY KEY (project, node)
) WITH (fillfactor = 50);

CREATE TABLE refs (
  project bigint NOT NULL,
  name text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  last_move bigint NOT NULL,
  PRIMARY KEY (project, name)
) PARTITION BY HASH (project);

CREATE TABLE operations (
  project bigint NOT NULL,
  seq bigint NOT NULL,
  record bytea NOT NULL,
  -- For each change of the record: the operation that moved the reference before.
  previous bigint[] NOT NULL,
  PRIMARY KEY (project, seq)
) PARTITION BY HASH (project);

CREATE TABLE requests (
  project bigint NOT NULL,
  scope bytea NOT NULL,
  request bytea NOT NULL,
  seq bigint NOT NULL,
  PRIMARY KEY (project, scope)
) PARTITION BY HASH (project);
CREATE INDEX requests_by_seq ON requests (project, seq);

-- live -> doomed -> gone. A doomed pack never becomes live again.
CREATE TABLE packs (
  project bigint NOT NULL,
  first_number bigint NOT NULL,
  id bytea NOT NULL,
  state "char" NOT NULL DEFAULT 'l',
  objects int NOT NULL,
  bytes bigint NOT NULL,
  footer_bytes int NOT NULL,
  -- The index of an inline pack, whose bytes are in `tails`; NULL for one in the bucket.
  footer bytea,
  epoch bigint NOT NULL,
  change bigint NOT NULL,
  doomed_at timestamptz,
  PRIMARY KEY (project, first_number)
) PARTITION BY HASH (project);
CREATE UNIQUE INDEX packs_by_id ON packs (project, id);
CREATE INDEX packs_by_change ON packs (project, change);
CREATE INDEX packs_doomed ON packs (project, doomed_at) WHERE state = 'd';

CREATE TABLE tails (
  project bigint NOT NULL,
  id bytea NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (project, id)
) PARTITION BY HASH (project);
ALTER TABLE tails ALTER body SET STORAGE EXTERNAL;

-- Slots of packs whose objects a collection deleted.
CREATE TABLE graves (
  project bigint NOT NULL,
  pack bigint NOT NULL,
  change bigint NOT NULL,
  slots int[] NOT NULL,
  PRIMARY KEY (project, change, pack)
) PARTITION BY HASH (project);
CREATE INDEX graves_by_pack ON graves (project, pack);

-- Slots of packs that a session checked for, with the epoch of that moment.
CREATE TABLE meets (
  project bigint NOT NULL,
  pack bigint NOT NULL,
  epoch bigint NOT NULL,
  slots int[] NOT NULL
) PARTITION BY HASH (project);
CREATE INDEX meets_by_pack ON meets (project, pack, epoch);

-- Tombstones ('t') and quarantined rows ('q'). A removed row keeps its key without a value, so that nodes learn of it.
CREATE TABLE marks (
  project bigint NOT NULL,
  family "char" NOT NULL,
  key bytea NOT NULL,
  value bytea,
  change bigint NOT NULL,
  PRIMARY KEY (project, family, key)
) PARTITION BY HASH (project);
CREATE INDEX marks_by_change ON marks (project, change);

-- Names of packs that a node reserved and may have written to the bucket without registering them.
CREATE TABLE uploads (
  project bigint NOT NULL,
  id bytea NOT NULL,
  node bytea NOT NULL,
  generation bigint NOT NULL,
  PRIMARY KEY (project, id)
) PARTITION BY HASH (project);

DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['refs', 'operations', 'requests', 'packs', 'tails', 'graves', 'meets', 'marks', 'uploads'] LOOP
    FOR i IN 0..7 LOOP
      EXECUTE format('CREATE TABLE %s_%s PARTITION OF %s FOR VALUES WITH (MODULUS 8, REMAINDER %s)', t, i, t, i);
    END LOOP;
  END LOOP;
END $$;

-- Locks the project and refuses a node that was expelled. Every function that writes begins here.
CREATE FUNCTION enter_project(p bigint, n bytea, g bigint) RETURNS projects LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  SELECT * INTO pr FROM projects WHERE project = p FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no project %', p USING ERRCODE = 'AM002';
  END IF;
  PERFORM 1 FROM nodes WHERE node = n AND generation = g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fenced' USING ERRCODE = 'AM001';
  END IF;
  RETURN pr;
END $$;

-- Registers a pack and returns the number of its first object. A pack that is registered already keeps its number.
CREATE FUNCTION register_pack(pr INOUT projects, pack_id bytea, pack_objects int, pack_bytes bigint, pack_footer_bytes int,
  pack_footer bytea, pack_body bytea, OUT first bigint, OUT of_epoch bigint, OUT of_change bigint) LANGUAGE plpgsql AS $$
BEGIN
  SELECT k.first_number, k.epoch, k.change INTO first, of_epoch, of_change
    FROM packs k WHERE k.project = pr.project AND k.id = pack_id;
  IF FOUND THEN
    RETURN;
  END IF;
  first := pr.next_number;
  of_epoch := pr.epoch;
  of_change := pr.next_change;
  INSERT INTO packs (project, first_number, id, objects, bytes, footer_bytes, footer, epoch, change)
    VALUES (pr.project, first, pack_id, pack_objects, pack_bytes, pack_footer_bytes, pack_footer, pr.epoch, pr.next_change);
  IF pack_footer IS NULL THEN
    DELETE FROM uploads u WHERE u.project = pr.project AND u.id = pack_id;
  ELSE
    INSERT INTO tails (project, id, body) VALUES (pr.project, pack_id, pack_body);
  END IF;
  pr.next_number := pr.next_number + pack_objects;
  pr.next_change := pr.next_change + 1;
END $$;

CREATE FUNCTION leave_project(pr projects) RETURNS void LANGUAGE sql AS $$
  UPDATE projects SET next_operation = pr.next_operation, next_number = pr.next_number, next_change = pr.next_change,
    epoch = pr.epoch WHERE project = pr.project
$$;

-- Registers packs ahead of a transaction. Returns a JSON array of [first number, epoch, change].
CREATE FUNCTION register_packs(p bigint, n bytea, g bigint, ids bytea[], objects int[], bytes bigint[], footers_bytes int[],
  footers bytea[], bodies bytea[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE pr projects; r record; reply jsonb := '[]';
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  pr := enter_project(p, n, g);
  FOR i IN 1..cardinality(ids) LOOP
    r := register_pack(pr, ids[i], objects[i], bytes[i], footers_bytes[i], footers[i], bodies[i]);
    pr := r.pr;
    reply := reply || jsonb_build_array(jsonb_build_array(r.first, r.of_epoch, r.of_change));
  END LOOP;
  PERFORM leave_project(pr);
  RETURN reply::text;
END $$;

-- Executes a batch of transactions: compares references, numbers operations without a gap, moves references.
--
-- Packs with transaction 0 are in the bucket and are registered in any case; the others belong to the transaction with that
-- number. `ref_set` is the position of a reference among the record's changes; 0 if it is only compared.
CREATE FUNCTION transact(p bigint, n bytea, g bigint, durable bool, this_batch bigint, count int,
  scopes bytea[], requested bytea[], records bytea[],
  ref_tx int[], ref_name text[], ref_old bytea[], ref_set int[], ref_new bytea[],
  pack_tx int[], pack_id bytea[], pack_objects int[], pack_bytes bigint[], pack_footer_bytes int[], pack_footer bytea[],
  pack_body bytea[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  pr projects; w record; r record; k record;
  replies jsonb := '[]'; registered jsonb := '[]'; moved jsonb; before bigint[]; seq_now bigint; reply_text text;
BEGIN
  IF NOT durable THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  pr := enter_project(p, n, g);
  SELECT batch, reply INTO w FROM writers WHERE project = p AND node = n AND generation = g;
  IF FOUND AND w.batch = this_batch THEN
    RETURN w.reply;
  END IF;
  IF FOUND AND w.batch > this_batch THEN
    RAISE EXCEPTION 'batch % came after batch %', this_batch, w.batch USING ERRCODE = 'AM003';
  END IF;
  FOR i IN 0..count LOOP
    IF i > 0 THEN
      IF scopes[i] IS NOT NULL THEN
        SELECT q.request, q.seq INTO r FROM requests q WHERE q.project = p AND q.scope = scopes[i];
        IF FOUND THEN
          replies := replies || jsonb_build_array(
            CASE WHEN r.request = requested[i] THEN jsonb_build_object('replayed', r.seq)
              ELSE jsonb_build_object('reused', r.seq) END);
          CONTINUE;
        END IF;
      END IF;
      SELECT jsonb_agg(jsonb_build_array(e.name, encode(f.value, 'hex')) ORDER BY e.at) INTO moved
        FROM unnest(ref_tx, ref_name, ref_old) WITH ORDINALITY e(tx, name, old, at)
        LEFT JOIN refs f ON f.project = p AND f.name = e.name
        WHERE e.tx = i AND f.value IS DISTINCT FROM e.old;
      IF moved IS NOT NULL THEN
        replies := replies || jsonb_build_array(jsonb_build_object('moved', moved));
        CONTINUE;
      END IF;
    END IF;
    FOR k IN SELECT * FROM unnest(pack_tx, pack_id, pack_objects, pack_bytes, pack_footer_bytes, pack_footer, pack_body)
      WITH ORDINALITY e(tx, id, objects, bytes, footer_bytes, footer, body, at) WHERE e.tx = i ORDER BY e.at
    LOOP
      r := register_pack(pr, k.id, k.objects, k.bytes, k.footer_bytes, k.footer, k.body);
      pr := r.pr;
      registered := registered || jsonb_build_array(jsonb_build_array(k.at, r.first, r.of_epoch, r.of_change));
    END LOOP;
    IF i = 0 THEN
      CONTINUE;
    END IF;
    IF records[i] IS NULL THEN
      replies := replies || jsonb_build_array(jsonb_build_object('done', 0));
      CONTINUE;
    END IF;
    seq_now := pr.next_operation;
    pr.next_operation := seq_now + 1;
    SELECT coalesce(array_agg(coalesce(f.last_move, 0) ORDER BY e.set_at), '{}') INTO before
      FROM unnest(ref_tx, ref_name, ref_set) e(tx, name, set_at)
      LEFT JOIN refs f ON f.project = p AND f.name = e.name
      WHERE e.tx = i AND e.set_at > 0;
    INSERT INTO operations (project, seq, record, previous) VALUES (p, seq_now, records[i], before);
    IF scopes[i] IS NOT NULL THEN
      INSERT INTO requests (project, scope, request, seq) VALUES (p, scopes[i], requested[i], seq_now);
    END IF;
    DELETE FROM refs f USING unnest(ref_tx, ref_name, ref_set, ref_new) e(tx, name, set_at, value)
      WHERE e.tx = i AND e.set_at > 0 AND e.value IS NULL AND f.project = p AND f.name = e.name;
    INSERT INTO refs (project, name, value, last_move)
      SELECT p, e.name, e.value, seq_now FROM unnest(ref_tx, ref_name, ref_set, ref_new) e(tx, name, set_at, value)
      WHERE e.tx = i AND e.set_at > 0 AND e.value IS NOT NULL
      ON CONFLICT (project, name) DO UPDATE SET value = excluded.value, last_move = excluded.last_move;
    replies := replies || jsonb_build_array(jsonb_build_object('done', seq_now, 'previous', before));
  END LOOP;
  PERFORM leave_project(pr);
  reply_text := jsonb_build_object('epoch', pr.epoch, 'packs', registered, 'replies', replies)::text;
  INSERT INTO writers (project, node, generation, batch, reply) VALUES (p, n, g, this_batch, reply_text)
    ON CONFLICT (project, node) DO UPDATE
    SET generation = excluded.generation, batch = excluded.batch, reply = excluded.reply;
  RETURN reply_text;
END $$;

-- Records that a session checked for objects, and returns the epoch; NULL if the caller has not seen every change.
CREATE FUNCTION stamp_objects(p bigint, n bytea, g bigint, seen bigint, of_pack bigint[], of_slot int[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  pr := enter_project(p, n, g);
  IF pr.next_change - 1 > seen THEN
    RETURN NULL;
  END IF;
  INSERT INTO meets (project, pack, epoch, slots)
    SELECT p, e.pack, pr.epoch, array_agg(e.slot) FROM unnest(of_pack, of_slot) e(pack, slot) GROUP BY e.pack;
  RETURN pr.epoch;
END $$;

-- Refuses a collector that lost its lease; renews the lease otherwise.
CREATE FUNCTION enter_collection(p bigint, n bytea, g bigint, token bigint) RETURNS projects LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_project(p, n, g);
  IF pr.collector IS DISTINCT FROM n OR pr.collector_token <> token THEN
    RAISE EXCEPTION 'another node collects' USING ERRCODE = 'AM004';
  END IF;
  UPDATE projects SET collector_expires = clock_timestamp() + interval '30 seconds' WHERE project = p;
  RETURN pr;
END $$;

-- Registers a node as a writer of a project. Refused while another node collects it: the collector knows the sessions and pins of
-- its own process only.
CREATE FUNCTION join_project(p bigint, n bytea, g bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_project(p, n, g);
  IF pr.collector <> n AND pr.collector_expires > clock_timestamp()
    AND EXISTS (SELECT 1 FROM nodes m WHERE m.node = pr.collector) THEN
    RAISE EXCEPTION 'another node collects' USING ERRCODE = 'AM004';
  END IF;
  -- A collector whose lease has expired deletes nothing more.
  UPDATE projects SET collector = NULL, collector_token = collector_token + 1 WHERE project = p AND collector <> n;
  INSERT INTO writers (project, node, generation) VALUES (p, n, g)
    ON CONFLICT (project, node) DO UPDATE SET generation = excluded.generation, batch = 0, reply = '';
END $$;

-- Takes the collector's lease and starts an epoch. Expelled nodes must be gone before: a commit that had the lock first is a root,
-- a later one is fenced. Refused while other nodes have the project open.
CREATE FUNCTION begin_collection(p bigint, n bytea, g bigint, OUT token bigint, OUT new_epoch bigint) LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_project(p, n, g);
  DELETE FROM writers w WHERE w.project = p
    AND NOT EXISTS (SELECT 1 FROM nodes m WHERE m.node = w.node AND m.generation = w.generation);
  IF EXISTS (SELECT 1 FROM writers w WHERE w.project = p AND w.node <> n) THEN
    RAISE EXCEPTION 'other nodes have the project open' USING ERRCODE = 'AM005';
  END IF;
  UPDATE projects SET epoch = epoch + 1, collector = n, collector_token = collector_token + 1,
    collector_expires = clock_timestamp() + interval '30 seconds'
    WHERE project = p RETURNING collector_token, epoch INTO token, new_epoch;
END $$;

-- Deletes objects that no session checked for since an epoch. Each item lists all copies of one object. Returns the items that
-- stay; `behind` if the caller has not seen every change.
CREATE FUNCTION bury_objects(p bigint, n bytea, g bigint, token bigint, seen bigint, older_than bigint,
  of_item int[], of_pack bigint[], of_slot int[], OUT behind bool, OUT stayed int[], OUT of_change bigint)
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  pr := enter_collection(p, n, g, token);
  behind := pr.next_change - 1 > seen;
  IF behind THEN
    RETURN;
  END IF;
  SELECT coalesce(array_agg(DISTINCT e.item), '{}') INTO stayed
    FROM unnest(of_item, of_pack, of_slot) e(item, pack, slot)
    JOIN packs k ON k.project = p AND k.first_number = e.pack
    WHERE k.epoch >= older_than OR EXISTS (
      SELECT 1 FROM meets m WHERE m.project = p AND m.pack = e.pack AND m.epoch >= older_than AND e.slot = ANY (m.slots));
  -- A later collection never asks for older ones.
  DELETE FROM meets m WHERE m.project = p AND m.epoch < older_than;
  of_change := pr.next_change;
  INSERT INTO graves (project, pack, change, slots)
    SELECT p, e.pack, of_change, array_agg(e.slot) FROM unnest(of_item, of_pack, of_slot) e(item, pack, slot)
    WHERE e.item <> ALL (stayed) GROUP BY e.pack;
  pr.next_change := pr.next_change + 1;
  PERFORM leave_project(pr);
END $$;

-- Replaces packs by others that hold what is live of them. The replaced ones are doomed, for good. NULL if one of them is doomed
-- already, or if a collection deleted objects of it that the caller has not seen.
CREATE FUNCTION replace_packs(p bigint, n bytea, g bigint, seen bigint, doomed bigint[], ids bytea[], objects int[],
  bytes bigint[], footers_bytes int[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE pr projects; r record; reply jsonb := '[]';
BEGIN
  pr := enter_project(p, n, g);
  -- The answer to an earlier call may have been lost.
  IF cardinality(ids) = 0 OR NOT EXISTS (SELECT 1 FROM packs WHERE project = p AND id = ids[1]) THEN
    PERFORM 1 FROM unnest(doomed) e(pack) LEFT JOIN packs k ON k.project = p AND k.first_number = e.pack AND k.state = 'l'
      WHERE k.project IS NULL;
    IF FOUND OR EXISTS (SELECT 1 FROM graves v WHERE v.project = p AND v.pack = ANY (doomed) AND v.change > seen) THEN
      RETURN NULL;
    END IF;
  END IF;
  FOR i IN 1..cardinality(ids) LOOP
    r := register_pack(pr, ids[i], objects[i], bytes[i], footers_bytes[i], NULL, NULL);
    pr := r.pr;
    reply := reply || jsonb_build_array(jsonb_build_array(r.first, r.of_epoch, r.of_change));
  END LOOP;
  UPDATE packs SET state = 'd', doomed_at = clock_timestamp(), change = pr.next_change
    WHERE project = p AND first_number = ANY (doomed) AND state = 'l';
  pr.next_change := pr.next_change + 1;
  PERFORM leave_project(pr);
  RETURN reply::text;
END $$;

-- Names of packs that an expelled node reserved. Waits for registrations that began before it was expelled.
CREATE FUNCTION orphaned_uploads(p bigint) RETURNS SETOF bytea LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM projects WHERE project = p FOR UPDATE;
  RETURN QUERY SELECT u.id FROM uploads u WHERE u.project = p
    AND NOT EXISTS (SELECT 1 FROM nodes m WHERE m.node = u.node AND m.generation = u.generation);
END $$;

-- Deletes the oldest operations, with their requests, and returns the number of the oldest one that stays.
CREATE FUNCTION trim_operations(p bigint, n bytea, g bigint, before bigint, at_most bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE pr projects; until bigint;
BEGIN
  pr := enter_project(p, n, g);
  until := greatest(least(before, pr.next_operation - 1, pr.first_operation + at_most), pr.first_operation);
  DELETE FROM operations WHERE project = p AND seq < until;
  DELETE FROM requests WHERE project = p AND seq < until;
  UPDATE projects SET first_operation = until WHERE project = p;
  RETURN until;
END $$;

-- Removes copies of objects, and sets or removes tombstones ('t') and quarantined rows ('q'), for a purge or a repair.
CREATE FUNCTION edit_rows(p bigint, n bytea, g bigint, of_pack bigint[], of_slot int[], families text[], keys bytea[],
  new_values bytea[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_project(p, n, g);
  INSERT INTO graves (project, pack, change, slots)
    SELECT p, e.pack, pr.next_change, array_agg(DISTINCT e.slot) FROM unnest(of_pack, of_slot) e(pack, slot) GROUP BY e.pack;
  INSERT INTO marks (project, family, key, value, change)
    SELECT p, e.family::"char", e.key, e.value, pr.next_change FROM unnest(families, keys, new_values) e(family, key, value)
    ON CONFLICT (project, family, key) DO UPDATE SET value = excluded.value, change = excluded.change;
  pr.next_change := pr.next_change + 1;
  PERFORM leave_project(pr);
END $$;
