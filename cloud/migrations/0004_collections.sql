-- Collections beside other nodes. A collection has a token. Every other node that has the project open answers it: it tells the epoch of
-- its oldest session and its pins, and announces each new pin from then on. Nothing is deleted before all nodes have answered, and no
-- batch is deleted while there is a pin that the collector has not seen. The lock of the project orders all of it.

ALTER TABLE projects
  ADD collector_lease double precision NOT NULL DEFAULT 30,
  -- The newest change of a pack whose row is gone. A node that has not seen it compares its index with the packs that are left.
  ADD forgotten_change bigint NOT NULL DEFAULT 0,
  ADD collected_at timestamptz,
  ADD collected_bytes bigint NOT NULL DEFAULT 0;

ALTER TABLE writers
  -- The token of the last collection that the node answered, and the epoch of its oldest session by then.
  ADD answered bigint NOT NULL DEFAULT 0,
  ADD oldest_epoch bigint;

-- When the name was given up. It is never registered after that, and the object is deleted after the grace time.
ALTER TABLE uploads ADD orphaned_at timestamptz;

-- Objects that other nodes pinned during a collection. Unlogged like the nodes: after a crash all of them are fenced, the collector too.
CREATE UNLOGGED TABLE holds (
  project bigint NOT NULL,
  token bigint NOT NULL,
  -- Taken under the lock of the project, so that it ascends in the order of visibility.
  number bigint GENERATED ALWAYS AS IDENTITY,
  ids bytea[] NOT NULL,
  PRIMARY KEY (project, token, number)
);

-- Registers a pack, as before; a pack in the bucket needs a reserved name that was not given up.
CREATE OR REPLACE FUNCTION register_pack(pr INOUT projects, pack_id bytea, pack_objects int, pack_bytes bigint,
  pack_footer_bytes int, pack_footer bytea, pack_body bytea, OUT first bigint, OUT of_epoch bigint, OUT of_change bigint)
LANGUAGE plpgsql AS $$
BEGIN
  SELECT k.first_number, k.epoch, k.change INTO first, of_epoch, of_change
    FROM packs k WHERE k.project = pr.project AND k.id = pack_id;
  IF FOUND THEN
    RETURN;
  END IF;
  IF pack_footer IS NULL THEN
    DELETE FROM uploads u WHERE u.project = pr.project AND u.id = pack_id AND u.orphaned_at IS NULL;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the name of a pack was given up' USING ERRCODE = 'AM007';
    END IF;
  ELSE
    INSERT INTO tails (project, id, body) VALUES (pr.project, pack_id, pack_body);
  END IF;
  first := pr.next_number;
  of_epoch := pr.epoch;
  of_change := pr.next_change;
  INSERT INTO packs (project, first_number, id, objects, bytes, footer_bytes, footer, epoch, change)
    VALUES (pr.project, first, pack_id, pack_objects, pack_bytes, pack_footer_bytes, pack_footer, pr.epoch, pr.next_change);
  pr.next_number := pr.next_number + pack_objects;
  pr.next_change := pr.next_change + 1;
END $$;

-- Ends a collection whose lease has expired or whose node was expelled: its token is no longer valid.
CREATE FUNCTION end_expired_collection(p bigint) RETURNS void LANGUAGE sql AS $$
  UPDATE projects SET collector = NULL, collector_token = collector_token + 1
    WHERE project = p AND collector IS NOT NULL
    AND (collector_expires <= clock_timestamp() OR NOT EXISTS (SELECT 1 FROM nodes m WHERE m.node = collector))
$$;

CREATE OR REPLACE FUNCTION enter_collection(p bigint, n bytea, g bigint, token bigint) RETURNS projects
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_project(p, n, g);
  IF pr.collector IS DISTINCT FROM n OR pr.collector_token <> token THEN
    RAISE EXCEPTION 'the lease of the collector was lost' USING ERRCODE = 'AM005';
  END IF;
  UPDATE projects SET collector_expires = clock_timestamp() + make_interval(secs => collector_lease) WHERE project = p;
  RETURN pr;
END $$;

-- Registers a node as a writer of a project. While another node collects, it has answered from the start: it has neither sessions nor
-- pins, and announces those to come. Returns the token of that collection, or 0.
DROP FUNCTION join_project(bigint, bytea, bigint);
CREATE FUNCTION join_project(p bigint, n bytea, g bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE pr projects; round bigint := 0;
BEGIN
  pr := enter_project(p, n, g);
  -- The same node may have collected before it was started anew.
  UPDATE projects SET collector = NULL, collector_token = collector_token + 1 WHERE project = p AND collector = n;
  PERFORM end_expired_collection(p);
  SELECT collector_token INTO round FROM projects WHERE project = p AND collector IS NOT NULL;
  round := coalesce(round, 0);
  INSERT INTO writers (project, node, generation, answered) VALUES (p, n, g, round)
    ON CONFLICT (project, node) DO UPDATE
    SET generation = excluded.generation, batch = 0, reply = '', answered = excluded.answered, oldest_epoch = NULL;
  RETURN round;
END $$;

-- Takes the collector's lease and starts an epoch. Expelled nodes must be gone before: a commit that had the lock first is a root,
-- a later one is fenced.
DROP FUNCTION begin_collection(bigint, bytea, bigint);
CREATE FUNCTION begin_collection(p bigint, n bytea, g bigint, lease double precision, OUT token bigint, OUT new_epoch bigint)
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_project(p, n, g);
  PERFORM end_expired_collection(p);
  IF EXISTS (SELECT 1 FROM projects WHERE project = p AND collector <> n) THEN
    RAISE EXCEPTION 'another node collects' USING ERRCODE = 'AM004';
  END IF;
  DELETE FROM writers w WHERE w.project = p
    AND NOT EXISTS (SELECT 1 FROM nodes m WHERE m.node = w.node AND m.generation = w.generation);
  UPDATE projects SET epoch = epoch + 1, collector = n, collector_token = collector_token + 1, collector_lease = lease,
    collector_expires = clock_timestamp() + make_interval(secs => lease)
    WHERE project = p RETURNING collector_token, epoch INTO token, new_epoch;
  DELETE FROM holds h WHERE h.project = p;
END $$;

-- The collection that is under way. One that has expired ends here, so that a dead collector keeps nobody.
CREATE FUNCTION current_collection(p bigint, OUT of_collector bytea, OUT of_token bigint, OUT of_epoch bigint)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM end_expired_collection(p);
  SELECT collector, collector_token, epoch INTO of_collector, of_token, of_epoch
    FROM projects WHERE project = p AND collector IS NOT NULL;
END $$;

-- Answers a collection. Executed twice, it does the same.
CREATE FUNCTION answer_collection(p bigint, n bytea, g bigint, token bigint, oldest bigint, pins bytea[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  pr := enter_project(p, n, g);
  IF pr.collector IS NULL OR pr.collector_token <> token THEN
    RETURN;
  END IF;
  IF cardinality(pins) > 0 THEN
    INSERT INTO holds (project, token, ids) VALUES (p, token, pins);
  END IF;
  UPDATE writers SET answered = token, oldest_epoch = oldest WHERE project = p AND node = n AND generation = g;
END $$;

-- Announces pins to a collection. Returns the next change: whatever was deleted before is in the changes before it.
CREATE FUNCTION announce_pins(p bigint, n bytea, g bigint, token bigint, pins bytea[], OUT is_over bool, OUT next bigint)
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  pr := enter_project(p, n, g);
  next := pr.next_change;
  is_over := pr.collector IS NULL OR pr.collector_token <> token;
  IF NOT is_over THEN
    INSERT INTO holds (project, token, ids) VALUES (p, token, pins);
  END IF;
END $$;

-- The number of nodes that have not answered yet, and the epoch of the oldest session of the others.
CREATE FUNCTION collection_answers(p bigint, n bytea, g bigint, token bigint, OUT waiting bigint, OUT oldest bigint)
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_collection(p, n, g, token);
  SELECT count(*) FILTER (WHERE w.answered <> token), min(w.oldest_epoch) INTO waiting, oldest
    FROM writers w JOIN nodes m ON m.node = w.node AND m.generation = w.generation
    WHERE w.project = p AND w.node <> n;
END $$;

-- Deletes objects that no session checked for since an epoch. Each item lists all copies of one object. Returns the items that
-- stay; `behind` if the caller has not seen every change; `pinned` if nodes have pinned objects that the caller has not seen.
DROP FUNCTION bury_objects(bigint, bytea, bigint, bigint, bigint, bigint, int[], bigint[], int[]);
CREATE FUNCTION bury_objects(p bigint, n bytea, g bigint, token bigint, seen bigint, held bigint, older_than bigint,
  of_item int[], of_pack bigint[], of_slot int[],
  OUT behind bool, OUT pinned bool, OUT stayed int[], OUT of_change bigint)
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  pr := enter_collection(p, n, g, token);
  behind := pr.next_change - 1 > seen;
  pinned := EXISTS (SELECT 1 FROM holds h WHERE h.project = p AND h.token = bury_objects.token AND h.number > held);
  IF behind OR pinned THEN
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
-- already, or if a collection deleted objects of it that the caller has not seen, or if a collection is under way and the caller is not
-- its collector, whose token is passed: an object that moves looks new to a sweep.
DROP FUNCTION replace_packs(bigint, bytea, bigint, bigint, bigint[], bytea[], int[], bigint[], int[]);
CREATE FUNCTION replace_packs(p bigint, n bytea, g bigint, token bigint, seen bigint, doomed bigint[], ids bytea[], objects int[],
  bytes bigint[], footers_bytes int[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE pr projects; r record; reply jsonb := '[]';
BEGIN
  IF token > 0 THEN
    pr := enter_collection(p, n, g, token);
  ELSE
    pr := enter_project(p, n, g);
    PERFORM end_expired_collection(p);
    IF EXISTS (SELECT 1 FROM projects WHERE project = p AND collector IS NOT NULL) THEN
      RETURN NULL;
    END IF;
  END IF;
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

-- The doomed packs whose grace time is over. A token of 0 is that of a purge, which is no collection.
CREATE FUNCTION doomed_packs(p bigint, n bytea, g bigint, token bigint, grace double precision)
RETURNS TABLE (id bytea, first_number bigint, is_stored bool) LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  IF token > 0 THEN
    pr := enter_collection(p, n, g, token);
  ELSE
    pr := enter_project(p, n, g);
  END IF;
  RETURN QUERY SELECT k.id, k.first_number, k.footer IS NULL FROM packs k
    WHERE k.project = p AND k.state = 'd' AND k.doomed_at <= clock_timestamp() - make_interval(secs => grace);
END $$;

-- Forgets doomed packs whose objects were deleted from the bucket.
CREATE FUNCTION forget_packs(p bigint, n bytea, g bigint, token bigint, ids bytea[], numbers bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  IF token > 0 THEN
    pr := enter_collection(p, n, g, token);
  ELSE
    pr := enter_project(p, n, g);
  END IF;
  UPDATE projects SET forgotten_change = greatest(forgotten_change,
    (SELECT max(k.change) FROM packs k WHERE k.project = p AND k.first_number = ANY (numbers) AND k.state = 'd'))
    WHERE project = p;
  DELETE FROM tails WHERE project = p AND id = ANY (ids);
  DELETE FROM graves WHERE project = p AND pack = ANY (numbers);
  DELETE FROM meets WHERE project = p AND pack = ANY (numbers);
  DELETE FROM packs WHERE project = p AND first_number = ANY (numbers) AND state = 'd';
END $$;

-- Gives up the names of expelled nodes, and returns all that were given up longer ago than the grace time. Waits for registrations that
-- began before a node was expelled.
DROP FUNCTION orphaned_uploads(bigint);
CREATE FUNCTION orphaned_uploads(p bigint, n bytea, g bigint, token bigint, grace double precision) RETURNS SETOF bytea
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_collection(p, n, g, token);
  UPDATE uploads u SET orphaned_at = clock_timestamp() WHERE u.project = p AND u.orphaned_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM nodes m WHERE m.node = u.node AND m.generation = u.generation);
  RETURN QUERY SELECT u.id FROM uploads u WHERE u.project = p
    AND u.orphaned_at <= clock_timestamp() - make_interval(secs => grace);
END $$;

-- Forgets names that were given up and whose objects were deleted from the bucket.
CREATE FUNCTION forget_uploads(p bigint, n bytea, g bigint, token bigint, ids bytea[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_collection(p, n, g, token);
  DELETE FROM uploads WHERE project = p AND id = ANY (ids) AND orphaned_at IS NOT NULL;
END $$;

-- Records that a collection was completed.
CREATE FUNCTION finish_collection(p bigint, n bytea, g bigint, token bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_collection(p, n, g, token);
  UPDATE projects SET collected_at = clock_timestamp(),
    collected_bytes = (SELECT coalesce(sum(k.bytes), 0) FROM packs k WHERE k.project = p AND k.state = 'l')
    WHERE project = p;
END $$;
