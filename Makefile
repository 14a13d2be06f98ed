# Every target readies the machine first (scripts/setup), then calls cargo. ARGS reach the benchmarks.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help demo demo-server demo-cluster image packaging tour test lint landed dist install uninstall deb bench bench-store bench-history bench-files bench-gc bench-transfer bench-exchange bench-merge bench-views bench-nfs bench-server bench-scale bench-policy bench-sandbox conformance conformance-nfs integration schemathesis sdk-python sdk-typescript sdk-conformance sdk-docs bench-sdks test-cloud soak-cluster soak daily powercut fuzz clean e2b bench-cloud

ready = scripts/setup $(1) && source target/amalgam-env
# The agent as a static program, which runs in every image. Arguments choose the profile.
static_agent = cargo rustc --locked -p amalgam-agent --bin amalgam-agent $(1) -- -C target-feature=+crt-static
title = printf '\n== %s\n' $(1)
# Installed once, and again when the package asks for other libraries.
python_sdk = [[ -x $$venv/bin/python ]] || python3 -m venv "$$venv"; \
	[[ $$venv/installed -nt sdks/python/pyproject.toml ]] || { "$$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
	--editable 'sdks/python[dev,integrations]' && touch "$$venv/installed"; }
typescript_sdk = { [[ node_modules/.package-lock.json -nt package-lock.json ]] || npm ci --no-audit --no-fund --silent; }

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A first build leaves out the libraries of the network and jemalloc. Where the whole program was built, it stays in its place.
demo: ## a story with the real command, in a scratch directory
	@program="$${CARGO_TARGET_DIR:-target}/debug/amalgam"
	options=(--no-default-features --config scripts/first-build.toml)
	if "$$program" --version 2>/dev/null | grep -qv "without network"; then options=(); fi
	scripts/first-build "$${options[@]}"
	scripts/demo "$$program"

demo-server: ## the server's first ten minutes, by curl, in a scratch directory
	@$(call ready)
	cargo build --locked -p amalgam-cli
	scripts/demo-server "$${CARGO_TARGET_DIR:-target}/debug/amalgam"

demo-cluster: ## PostgreSQL, an S3 store and three nodes on this machine; one is killed on the way
	@$(call ready,test cloud)
	cargo build --locked -p amalgam-cli
	scripts/test-cloud scripts/with-postgres scripts/demo-cluster "$${CARGO_TARGET_DIR:-target}/debug/amalgam"

image: dist ## a container image of the server, from Debian packages: target/image/amalgam.tar
	@scripts/image "$${CARGO_TARGET_DIR:-target}/dist/amalgam" target/image/amalgam.tar

packaging: ## check the systemd unit, the compose files and the Kubernetes manifests
	@scripts/check-packaging

tour: ## the same through the engine's own interface, on a throw-away store
	@$(call ready)
	cargo run --release --locked -q -p amalgam-engine --example tour

test: ## build, then every test, doc tests and SDKs included; lists the skipped ones (AMALGAM_REQUIRE=fuse,root,...)
	@$(call ready,test sdk-python sdk-typescript)
	$(call title,build)
	cargo build --workspace --locked
	$(call title,test)
	export AMALGAM_SKIPPED="$$PWD/target/skipped" AMALGAM_AGENT_BUILT=1
	# Many tests wait for processes and timers most of their time.
	export RUST_TEST_THREADS="$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))}"
	rm -f "$$AMALGAM_SKIPPED"
	failed=0
	cargo test --workspace --locked --no-fail-fast || failed=$$?
	program="$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug/amalgam"
	# In this order: tests in Python run programs with the built TypeScript package.
	AMALGAM_BIN=$$program $(MAKE) --no-print-directory sdk-typescript sdk-python || failed=$$?
	$(call title,skipped)
	if [[ -s $$AMALGAM_SKIPPED ]]; then sort -u "$$AMALGAM_SKIPPED"; else echo "no test was skipped"; fi
	exit $$failed

lint: ## formatting, clippy, docs, licences and sources
	@$(call ready,lint)
	$(call title,format)
	cargo fmt --all --check
	$(call title,clippy)
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy -p amalgam-cli --no-default-features --locked -- -D warnings
	$(call title,docs)
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace --locked
	$(call title,proto)
	buf lint proto
	buf breaking proto --against proto/landed.binpb
	$(call title,dependencies)
	cargo deny --locked check bans licenses sources

landed: ## take the .proto files as the landed API, which later changes are compared with: proto/landed.binpb
	@$(call ready,lint)
	buf build proto --exclude-source-info -o proto/landed.binpb

dist: ## the programs as they are installed, stripped: target/dist
	@$(call ready)
	cargo build --profile dist --locked -p amalgam-cli -p amalgam-gc
	$(call static_agent,--profile dist)
	scripts/stage "$${CARGO_TARGET_DIR:-target}/dist" target/dist-root

PREFIX ?= /usr/local

install: ## build and install, with manual pages and completions (PREFIX=/usr/local DESTDIR=)
	@# Under sudo the programs are those that `make dist` built: root has no Rust, and should not leave files in target.
	[[ -n "$${SUDO_USER:-}" && -d target/dist-root ]] || $(MAKE) --no-print-directory dist
	scripts/install-files install target/dist-root "$(DESTDIR)$(PREFIX)"

uninstall: ## remove what `make install` put there (PREFIX=/usr/local DESTDIR=)
	@scripts/install-files uninstall "$(DESTDIR)$(PREFIX)"

deb: dist ## a Debian package: target/debian
	@$(call ready,deb)
	cargo deb --locked --no-build --profile dist -p amalgam-cli --output target/debian/

bench: bench-store bench-history bench-files bench-gc bench-transfer bench-exchange bench-merge bench-views bench-nfs bench-server bench-scale bench-policy bench-sandbox ## every benchmark

bench-store: ## forks, commits, diffs and the Linux tree put into a store (ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-store -- $(ARGS)

bench-history: ## what a change comes to, beside git (ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-history -- $(ARGS)

bench-files: ## real directories, beside cp, git, restic and borg (ARGS=...)
	@$(call ready,bench)
	cargo build --release --locked -q -p amalgam-cli
	cargo run --release --locked -q -p amalgam-benches --bin bench-files -- $(ARGS)

bench-gc: ## collection: rates, memory, room that comes back, commits beside it (ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-gc -- $(ARGS)

bench-scale: ## 1 k to 100 k workspaces, 1 M operations and references (ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-scale -- $(ARGS)

bench-policy: ## permissions: decisions, walks, changes under mounts; the radar; followers (ARGS=...)
	@$(call ready,bench)
	cargo build --release --locked -q -p amalgam-cli
	cargo run --release --locked -q -p amalgam-benches --bin bench-policy -- $(ARGS)

bench-cloud: ## commits, captures and checkouts on PostgreSQL and an S3 store, which are started and ended (ARGS=...)
	@$(call ready,bench cloud)
	cargo build --release --locked -q -p amalgam-benches --bin bench-cloud
	scripts/test-cloud scripts/with-postgres "$${CARGO_TARGET_DIR:-target}/release/bench-cloud" $(ARGS)

bench-server: ## the network server and its clients on loopback (ARGS=...)
	@$(call ready,bench)
	cargo build --release --locked -q -p amalgam-cli
	cargo run --release --locked -q -p amalgam-benches --bin bench-server -- $(ARGS)

# The peers of the rows about containers are `docker` itself and bare processes. An engine is started for the run where root can.
bench-sandbox: ## sandboxes: start, commands, streams, terminals, forks, many at once; local and in containers (ARGS=...)
	@$(call ready,bench integration)
	$(call static_agent,--release)
	cargo build --release --locked -q -p amalgam-benches --bin bench-sandbox
	target="$${CARGO_TARGET_DIR:-target}"
	scripts/with-docker "$$target/release/bench-sandbox" $(ARGS)

bench-transfer: ## stores sent to each other, and backups (ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-transfer -- $(ARGS)

bench-exchange: ## git, tar and images in and out, a served repository, beside git and GNU tar (ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-exchange -- $(ARGS)

bench-views: ## mounted workspaces, beside ext4 and fuse-overlayfs (needs root; ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-views -- $(ARGS)

bench-nfs: ## exports over NFS on loopback, beside a FUSE mount (ARGS=...)
	@$(call ready,bench)
	cargo build --release --locked -q -p amalgam-cli
	cargo run --release --locked -q -p amalgam-benches --bin bench-nfs -- $(ARGS)

conformance: ## a mounted workspace under pjdfstest, fsx, fio, stress-ng, real programs, in containers (needs root; ARGS=SUITE...)
	@$(call ready,conformance)
	cargo build --locked -p amalgam-tests --bin mounter
	MOUNTER="$${CARGO_TARGET_DIR:-target}/debug/mounter" scripts/conformance $(ARGS)

conformance-nfs: ## a workspace under a kernel's NFS client, in an emulated machine: pjdfstest, fsx, kills (ARGS=SUITE...)
	@$(call ready,conformance-nfs)
	cargo build --locked -p amalgam-cli
	cargo build --locked -p amalgam-nfs --example serve
	target="$${CARGO_TARGET_DIR:-target}"
	AMALGAM="$$target/debug/amalgam" NFS_SERVE="$$target/debug/examples/serve" scripts/conformance-nfs $(ARGS)

integration: ## images and sandboxes with a real Docker engine, which is started and ended (needs root)
	@$(call ready,integration)
	cargo build --locked -p amalgam-cli
	$(call static_agent)
	cargo test --locked -p amalgam-gateway --test server --no-run
	scripts/integration "$${CARGO_TARGET_DIR:-target}/debug/amalgam"

schemathesis: ## generated requests to every operation of the OpenAPI document, valid and not (CASES=20000 SEED=...)
	@$(call ready)
	cargo build --locked -p amalgam-cli
	scripts/schemathesis "$${CARGO_TARGET_DIR:-target}/debug/amalgam" $(ARGS)

# Keeps its files in target/sdk-python: the environment and the wheel. pip reads PyPI, or the index of PIP_INDEX_URL.
# With AMALGAM_BIN no Rust is needed: the tests start that program.
sdk-python: ## the Python SDK: wheel, ruff, mypy, tests against a real server (ARGS=... for pytest, AMALGAM_BIN=...)
	@if [[ -z $${AMALGAM_BIN:-} ]]; then
	  $(call ready,sdk-python)
	  $(call title,build)
	  cargo build --locked -p amalgam-cli -p amalgam-agent
	  export AMALGAM_BIN="$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug/amalgam"
	fi
	venv=$$PWD/target/sdk-python/venv
	$(python_sdk)
	cd sdks/python
	$(call title,wheel)
	rm -rf ../../target/sdk-python/dist
	"$$venv/bin/python" -m build --outdir ../../target/sdk-python/dist .
	$(call title,ruff)
	"$$venv/bin/ruff" check .
	"$$venv/bin/ruff" format --check .
	$(call title,mypy)
	"$$venv/bin/mypy"
	$(call title,test)
	"$$venv/bin/pytest" $(ARGS)

# Inspect and its libraries are large, so that only this target installs them.
sdk-conformance: ## the self-check of Inspect on our sandboxes (AMALGAM_BIN=...; the tests of LangChain are in sdk-python)
	@if [[ -z $${AMALGAM_BIN:-} ]]; then
	  $(call ready,sdk-python)
	  cargo build --locked -p amalgam-cli -p amalgam-agent
	  export AMALGAM_BIN="$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug/amalgam"
	fi
	venv=$$PWD/target/sdk-python/venv
	$(python_sdk)
	"$$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable 'sdks/python[inspect-ai]'
	cd sdks/python
	"$$venv/bin/pytest" tests/conformance $(ARGS)

# Keeps the packages in target/e2b. pip and npm read their registries.
e2b: ## the unmodified e2b packages of PyPI and npm against a server (AMALGAM_BIN=..., ARGS=TEST...)
	@if [[ -z $${AMALGAM_BIN:-} ]]; then
	  $(call ready,sdk-python sdk-typescript)
	  $(call title,build)
	  cargo build --locked -p amalgam-cli -p amalgam-agent
	  export AMALGAM_BIN="$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug/amalgam"
	fi
	scripts/e2b-clients "$$AMALGAM_BIN" $(ARGS)

# Keeps the compiler in sdks/typescript/node_modules and the tarball in target/sdk-typescript. npm reads its registry.
sdk-typescript: ## the TypeScript SDK: strict compile, tarball, tests against a real server (AMALGAM_BIN=...)
	@if [[ -z $${AMALGAM_BIN:-} ]]; then
	  $(call ready,sdk-typescript)
	  $(call title,build)
	  cargo build --locked -p amalgam-cli -p amalgam-agent
	  export AMALGAM_BIN="$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug/amalgam"
	fi
	cd sdks/typescript
	$(typescript_sdk)
	$(call title,tarball)
	mkdir -p ../../target/sdk-typescript
	npm pack --silent --pack-destination ../../target/sdk-typescript
	$(call title,test)
	node --test --test-concurrency=2 dist/test/

sdk-docs: ## the references of both SDKs, from the code: target/sdk-docs
	@$(call ready,sdk-python sdk-typescript)
	venv=$$PWD/target/sdk-python/venv
	$(python_sdk)
	"$$venv/bin/python" sdks/python/scripts/reference.py target/sdk-docs/python.md
	cd sdks/typescript
	$(typescript_sdk)
	node scripts/reference.mjs ../../target/sdk-docs/typescript.md

# AMALGAM_BIN measures another program, so that none is built.
bench-sdks: ## the Python and TypeScript SDKs, the LangGraph saver and the MCP tool list: target/bench/sdks.json (ARGS=--quick, AMALGAM_BIN=...)
	@if [[ -z $${AMALGAM_BIN:-} ]]; then
	  $(call ready,sdk-python sdk-typescript)
	  cargo build --release --locked -q -p amalgam-cli
	  export AMALGAM_BIN="$$(realpath "$${CARGO_TARGET_DIR:-target}")/release/amalgam"
	fi
	venv=$$PWD/target/sdk-python/venv
	$(python_sdk)
	(cd sdks/typescript && $(typescript_sdk) && npm run --silent build)
	export GPT_TOKENIZER_ROOT=$$PWD/target/bench-sdks
	[[ -d $$GPT_TOKENIZER_ROOT/node_modules/gpt-tokenizer ]] || npm install --silent --no-audit --no-fund --prefix "$$GPT_TOKENIZER_ROOT" gpt-tokenizer@4
	"$$venv/bin/python" sdks/bench/bench.py --json target/bench/sdks.json $(ARGS)
	node sdks/bench/bench.mjs --json target/bench/sdks.json $(ARGS)

# Suites of several nodes beside those of the crate.
node_suites := --test nodes --test node_collections --test node_model --test node_queue --test node_stops

test-cloud: ## the store of many nodes on PostgreSQL and a real S3 store, SeaweedFS, which is started and ended
	@$(call ready,test cloud)
	cargo test --locked -p amalgam-cloud --no-run
	cargo test --locked -p amalgam-tests $(node_suites) --no-run
	scripts/test-cloud cargo test --locked -p amalgam-cloud
	scripts/test-cloud cargo test --locked -p amalgam-tests $(node_suites)

# Figures are printed: faults, lost answers, collections, entries that landed.
soak-cluster: ## nodes with faults between them, for long: collections, the model and the queue (ROUNDS=200 SEQUENCES=100 DISTURBANCES=200)
	@$(call ready,test cloud)
	cargo test --release --locked -p amalgam-tests --test node_collections --test node_model --test node_queue --no-run
	export AMALGAM_CLUSTER_ROUNDS=$${ROUNDS:-200} AMALGAM_NODE_SEQUENCES=$${SEQUENCES:-100} AMALGAM_NODE_QUEUE_ROUNDS=$${DISTURBANCES:-200}
	scripts/test-cloud cargo test --release --locked -p amalgam-tests --test node_collections --test node_model --test node_queue -- --nocapture

bench-merge: ## contents, trees and the queue merged, beside git (ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-merge -- $(ARGS)

soak: ## the long tests: all of them, one after another
	@$(call ready,soak)
	cargo run --release --locked -p amalgam-tests --bin soak -- all

daily: ## random sequences of edits, Git, merges, undo, redo and restore against their model (SEQUENCES=10000)
	@$(call ready,test)
	AMALGAM_DAILY_SEQUENCES=$${SEQUENCES:-10000} cargo test --release --locked -p amalgam-cli --test daily random

powercut: ## cut the power under a store, again and again (needs root)
	@$(call ready,soak)
	[[ $$EUID == 0 ]] || { echo "make powercut mounts loop devices: run it as root" >&2; exit 1; }
	cargo run --release --locked -p amalgam-tests --bin soak -- powercut

fuzz: ## fuzz every target in turn (SECONDS_EACH=600)
	@$(call ready,fuzz)
	scripts/fuzz

clean: ## forget what was built here; RocksDB stays in the cache
	@cargo clean
	rm -rf target
