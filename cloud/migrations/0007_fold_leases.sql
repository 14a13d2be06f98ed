-- Leases of the targets of the merge queue: one node folds a target at a time. A lease ends with its node.

CREATE TABLE fold_leases (
  project bigint NOT NULL,
  target text COLLATE "C" NOT NULL,
  node bytea,
  generation bigint,
  PRIMARY KEY (project, target)
) WITH (fillfactor = 50);

-- Takes the lease of a target for a node. Returns false while a live node has it. A node whose own lease has expired is expelled
-- before its lease is taken over, so that it writes nothing more. Executed twice, it does the same.
CREATE FUNCTION take_fold_lease(p bigint, n bytea, g bigint, t text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE l fold_leases;
BEGIN
  PERFORM 1 FROM nodes WHERE node = n AND generation = g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fenced' USING ERRCODE = 'AM001';
  END IF;
  INSERT INTO fold_leases (project, target) VALUES (p, t) ON CONFLICT DO NOTHING;
  SELECT * INTO l FROM fold_leases WHERE project = p AND target = t FOR UPDATE;
  IF NOT FOUND THEN
    -- Another node gave it back at this moment.
    RETURN false;
  END IF;
  IF l.node = n AND l.generation = g THEN
    RETURN true;
  END IF;
  DELETE FROM nodes m WHERE m.node = l.node AND m.generation = l.generation AND m.expires < clock_timestamp();
  IF EXISTS (SELECT 1 FROM nodes m WHERE m.node = l.node AND m.generation = l.generation) THEN
    RETURN false;
  END IF;
  UPDATE fold_leases SET node = n, generation = g WHERE project = p AND target = t;
  RETURN true;
END $$;

-- Gives the lease of a target back, if the node still has it.
CREATE FUNCTION release_fold_lease(p bigint, n bytea, g bigint, t text) RETURNS void LANGUAGE sql AS $$
  DELETE FROM fold_leases WHERE project = p AND target = t AND node = n AND generation = g;
$$;
