-- Calls that arrive late. A statement whose connection failed is sent again over another one, and the first may still be executed after
-- that: it was on its way, or its backend was stopped.

-- Registers a node as a writer of a project, as before. Executed twice for one generation it does not forget the last batch, which
-- would then be executed twice.
CREATE OR REPLACE FUNCTION join_project(p bigint, n bytea, g bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE pr projects; round bigint := 0;
BEGIN
  pr := enter_project(p, n, g);
  IF EXISTS (SELECT 1 FROM writers w WHERE w.project = p AND w.node = n AND w.generation = g) THEN
    SELECT answered INTO round FROM writers w WHERE w.project = p AND w.node = n;
    RETURN round;
  END IF;
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

-- Gives up the names of expelled nodes, and returns all that were given up longer ago than the grace time, as before. The name of a
-- registered pack is never returned: a reservation that is executed twice, the second time after the registration, leaves such a name.
CREATE OR REPLACE FUNCTION orphaned_uploads(p bigint, n bytea, g bigint, token bigint, grace double precision) RETURNS SETOF bytea
LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_collection(p, n, g, token);
  DELETE FROM uploads u WHERE u.project = p AND EXISTS (SELECT 1 FROM packs k WHERE k.project = p AND k.id = u.id);
  UPDATE uploads u SET orphaned_at = clock_timestamp() WHERE u.project = p AND u.orphaned_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM nodes m WHERE m.node = u.node AND m.generation = u.generation);
  RETURN QUERY SELECT u.id FROM uploads u WHERE u.project = p
    AND u.orphaned_at <= clock_timestamp() - make_interval(secs => grace);
END $$;
