-- Calls that are sent again because their answer was lost, and calls of nodes that were expelled.
--
-- A call of a live tree has a number, which the node that makes it counts. Functions of live trees with other arguments are dropped: a
-- call of an earlier version that arrives late fails.

-- The number of the last call of the node that has the tree. A call with a lower one came late and changes nothing.
ALTER TABLE live_trees ADD last_call bigint NOT NULL DEFAULT 0;

-- Takes the live tree of a workspace. A node that has just taken it keeps it for `hold` milliseconds or until its first write: `wait`
-- tells how long that may still be, and nothing is taken then, unless `force` is set. A node that left or was expelled keeps nothing.
DROP FUNCTION take_live_tree(bigint, bytea, bigint, text, int, bool);
CREATE FUNCTION take_live_tree(p bigint, n bytea, g bigint, w text, hold int, force bool, this_call bigint,
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
    -- The node reads the files next. A write or a release of it that failed before must not change them after that.
    UPDATE live_trees SET last_call = this_call WHERE project = p AND workspace = w AND last_call < this_call;
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
  UPDATE live_trees SET node = n, generation = g, token = of_token, taken = clock_timestamp(), last_call = this_call
    WHERE project = p AND workspace = w;
END $$;

-- Stores parts of journal files, and removes the files that are not among `names`. Returns whether they are stored: the node still has
-- the tree, and has made no later call. Executed twice, it does the same. Refuses an expelled node: its tree may rely on buffered
-- commits that a crash has lost.
DROP FUNCTION write_live_tree(bigint, bytea, bigint, bigint, bigint, text[], text[], bigint[], bytea[]);
CREATE FUNCTION write_live_tree(p bigint, n bytea, g bigint, of_number bigint, of_token bigint, this_call bigint, names text[],
  part_name text[], part_start bigint[], part_bytes bytea[]) RETURNS bool
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  PERFORM 1 FROM nodes WHERE node = n AND generation = g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fenced' USING ERRCODE = 'AM001';
  END IF;
  UPDATE live_trees SET taken = '-infinity', last_call = this_call
    WHERE project = p AND number = of_number AND token = of_token AND node = n AND generation = g AND last_call < this_call;
  IF NOT FOUND THEN
    RETURN EXISTS (SELECT 1 FROM live_trees
      WHERE project = p AND number = of_number AND token = of_token AND node = n AND generation = g AND last_call = this_call);
  END IF;
  DELETE FROM live_files f WHERE f.project = p AND f.number = of_number AND f.name <> ALL (names);
  DELETE FROM live_files f USING unnest(part_name, part_start) e(name, start)
    WHERE f.project = p AND f.number = of_number AND f.name = e.name AND f.start >= e.start;
  INSERT INTO live_files (project, number, name, start, bytes)
    SELECT p, of_number, e.name, e.start, e.bytes FROM unnest(part_name, part_start, part_bytes) e(name, start, bytes);
  RETURN true;
END $$;

-- Gives back a tree that its node has and that has no uncommitted work, unless the node has made a later call. Refuses an expelled
-- node: the commit of its work may be lost.
DROP FUNCTION release_live_tree(bigint, bytea, bigint, bigint, bigint);
CREATE FUNCTION release_live_tree(p bigint, n bytea, g bigint, of_number bigint, of_token bigint, this_call bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM nodes WHERE node = n AND generation = g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fenced' USING ERRCODE = 'AM001';
  END IF;
  UPDATE live_trees SET node = NULL, generation = NULL, last_call = this_call
    WHERE project = p AND number = of_number AND token = of_token AND node = n AND generation = g AND last_call < this_call;
  IF FOUND THEN
    DELETE FROM live_files WHERE project = p AND number = of_number;
  END IF;
END $$;

-- Forgets the tree of a workspace that goes, if it is as the caller has seen it: a call that arrives late must not remove the tree of a
-- later workspace with that name, nor a later edit. Returns whether it did.
DROP FUNCTION forget_live_tree(bigint, text);
CREATE FUNCTION forget_live_tree(p bigint, w text, of_number bigint, of_token bigint, of_call bigint) RETURNS bool
LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM live_trees
    WHERE project = p AND workspace = w AND number = of_number AND token = of_token AND last_call = of_call;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  DELETE FROM live_files WHERE project = p AND number = of_number;
  RETURN true;
END $$;

-- Sets the references and the range of the log: from now on the project has its operations. Executed twice, it does the same.
CREATE OR REPLACE FUNCTION finish_import(p bigint, n bytea, g bigint, first bigint, next bigint, of_name text[], of_value bytea[],
  of_move bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_project(p, n, g);
  -- The answer to an earlier call may have been lost.
  IF next > 1 AND pr.next_operation = next AND pr.first_operation = first
    AND (SELECT count(*) FROM refs f WHERE f.project = p) = cardinality(of_name)
    AND NOT EXISTS (SELECT 1 FROM unnest(of_name, of_value, of_move) e(name, value, move)
      LEFT JOIN refs f ON f.project = p AND f.name = e.name
      WHERE f.value IS DISTINCT FROM e.value OR f.last_move IS DISTINCT FROM e.move) THEN
    RETURN;
  END IF;
  PERFORM enter_import(p, n, g);
  DELETE FROM refs WHERE project = p;
  INSERT INTO refs (project, name, value, last_move)
    SELECT p, e.name, e.value, e.move FROM unnest(of_name, of_value, of_move) e(name, value, move);
  UPDATE projects SET first_operation = first, next_operation = next WHERE project = p;
END $$;
