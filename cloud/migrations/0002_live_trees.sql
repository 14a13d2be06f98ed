-- Live trees: which node has the uncommitted tree of a workspace, and the files of its journal. An edit is acknowledged when its
-- journal record is here, so a node that dies, disk and all, loses none.

CREATE TABLE live_trees (
  project bigint NOT NULL,
  workspace text COLLATE "C" NOT NULL,
  number bigint GENERATED ALWAYS AS IDENTITY,
  -- The node that has the tree; NULL if it is closed and has no uncommitted work.
  node bytea,
  generation bigint,
  -- The fencing token: raised whenever another node takes the tree. Every write compares it.
  token bigint NOT NULL DEFAULT 0,
  -- When it was taken; '-infinity' after a write, so that another node need not wait.
  taken timestamptz NOT NULL DEFAULT '-infinity',
  PRIMARY KEY (project, workspace)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX live_trees_by_number ON live_trees (project, number);

CREATE TABLE live_files (
  project bigint NOT NULL,
  number bigint NOT NULL,
  name text COLLATE "C" NOT NULL,
  -- The offset of the first byte. A file is the concatenation of its parts.
  start bigint NOT NULL,
  bytes bytea NOT NULL,
  PRIMARY KEY (project, number, name, start)
) PARTITION BY HASH (project);
ALTER TABLE live_files ALTER bytes SET STORAGE EXTERNAL;

DO $$
BEGIN
  FOR i IN 0..7 LOOP
    EXECUTE format('CREATE TABLE live_files_%s PARTITION OF live_files FOR VALUES WITH (MODULUS 8, REMAINDER %s)', i, i);
  END LOOP;
END $$;

-- Takes the live tree of a workspace. A node that has just taken it keeps it for `hold` milliseconds or until its first write: `wait`
-- tells how long that may still be, and nothing is taken then, unless `force` is set. A node that left or was expelled keeps nothing.
CREATE FUNCTION take_live_tree(p bigint, n bytea, g bigint, w text, hold int, force bool,
  OUT of_number bigint, OUT of_token bigint, OUT wait int) LANGUAGE plpgsql AS $$
DECLARE t live_trees; rest double precision;
BEGIN
  PERFORM 1 FROM nodes WHERE node = n AND generation = g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fenced' USING ERRCODE = 'AM001';
  END IF;
  INSERT INTO live_trees (project, workspace) VALUES (p, w) ON CONFLICT DO NOTHING;
  SELECT * INTO t FROM live_trees WHERE project = p AND workspace = w FOR UPDATE;
  IF NOT FOUND THEN
    -- Another node forgot it at this moment.
    wait := 1;
    RETURN;
  END IF;
  wait := 0;
  of_number := t.number;
  of_token := t.token;
  IF t.node = n AND t.generation = g THEN
    RETURN;
  END IF;
  IF t.taken > '-infinity' THEN
    rest := hold - extract(epoch FROM clock_timestamp() - t.taken) * 1000;
  END IF;
  IF rest > 0 AND NOT force AND EXISTS (SELECT 1 FROM nodes m WHERE m.node = t.node AND m.generation = t.generation) THEN
    wait := ceil(rest);
    RETURN;
  END IF;
  of_token := t.token + 1;
  UPDATE live_trees SET node = n, generation = g, token = of_token, taken = clock_timestamp()
    WHERE project = p AND workspace = w;
END $$;

-- Stores parts of journal files, and removes the files that are not among `names`. Returns whether the node still has the tree.
-- Executed twice, it does the same.
CREATE FUNCTION write_live_tree(p bigint, n bytea, g bigint, of_number bigint, of_token bigint, names text[],
  part_name text[], part_start bigint[], part_bytes bytea[]) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
  UPDATE live_trees SET taken = '-infinity'
    WHERE project = p AND number = of_number AND token = of_token AND node = n AND generation = g;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  DELETE FROM live_files f WHERE f.project = p AND f.number = of_number AND f.name <> ALL (names);
  DELETE FROM live_files f USING unnest(part_name, part_start) e(name, start)
    WHERE f.project = p AND f.number = of_number AND f.name = e.name AND f.start >= e.start;
  INSERT INTO live_files (project, number, name, start, bytes)
    SELECT p, of_number, e.name, e.start, e.bytes FROM unnest(part_name, part_start, part_bytes) e(name, start, bytes);
  RETURN true;
END $$;

-- Gives back a tree that its node has and that has no uncommitted work.
CREATE FUNCTION release_live_tree(p bigint, n bytea, g bigint, of_number bigint, of_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE live_trees SET node = NULL, generation = NULL
    WHERE project = p AND number = of_number AND token = of_token AND node = n AND generation = g;
  IF FOUND THEN
    DELETE FROM live_files WHERE project = p AND number = of_number;
  END IF;
END $$;

-- Forgets the tree of a workspace that goes.
CREATE FUNCTION forget_live_tree(p bigint, w text) RETURNS void LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM live_trees WHERE project = p AND workspace = w RETURNING number)
  DELETE FROM live_files f USING gone WHERE f.project = p AND f.number = gone.number;
$$;
