# Every target readies the machine first (scripts/setup), then calls cargo. ARGS reach the benchmarks.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help demo tour test lint dist install uninstall deb bench bench-store bench-history bench-files bench-gc bench-transfer bench-merge bench-views bench-scale conformance soak daily powercut fuzz clean

ready = scripts/setup $(1) && source target/amalgam-env
title = printf '\n== %s\n' $(1)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a story with the real command, in a scratch directory
	@$(call ready)
	cargo build --locked -p amalgam-cli
	scripts/demo "$${CARGO_TARGET_DIR:-target}/debug/amalgam"

tour: ## the same through the engine's own interface, on a throw-away store
	@$(call ready)
	cargo run --release --locked -q -p amalgam-engine --example tour

test: ## build, then every test, doc tests included; lists the skipped ones (AMALGAM_REQUIRE=fuse,root,...)
	@$(call ready,test)
	$(call title,build)
	cargo build --workspace --locked
	$(call title,test)
	export AMALGAM_SKIPPED="$$PWD/target/skipped"
	rm -f "$$AMALGAM_SKIPPED"
	failed=0
	cargo test --workspace --locked || failed=$$?
	$(call title,skipped)
	if [[ -s $$AMALGAM_SKIPPED ]]; then sort -u "$$AMALGAM_SKIPPED"; else echo "no test was skipped"; fi
	exit $$failed

lint: ## formatting, clippy, docs, licences and sources
	@$(call ready,lint)
	$(call title,format)
	cargo fmt --all --check
	$(call title,clippy)
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(call title,docs)
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace --locked
	$(call title,proto)
	buf lint proto
	$(call title,dependencies)
	cargo deny --locked check bans licenses sources

dist: ## the programs as they are installed, stripped: target/dist
	@$(call ready)
	cargo build --profile dist --locked -p amalgam-cli -p amalgam-gc
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

bench: bench-store bench-history bench-files bench-gc bench-transfer bench-merge bench-views bench-scale ## every benchmark

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

bench-transfer: ## stores sent to each other, and backups (ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-transfer -- $(ARGS)

bench-views: ## mounted workspaces, beside ext4 and fuse-overlayfs (needs root; ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-views -- $(ARGS)

conformance: ## a mounted workspace under pjdfstest, fsx, fio, stress-ng, real programs, in containers (needs root; ARGS=SUITE...)
	@$(call ready,conformance)
	cargo build --locked -p amalgam-tests --bin mounter
	MOUNTER="$${CARGO_TARGET_DIR:-target}/debug/mounter" scripts/conformance $(ARGS)

bench-merge: ## contents, trees and the queue merged, beside git (ARGS=...)
	@$(call ready,bench)
	cargo run --release --locked -q -p amalgam-benches --bin bench-merge -- $(ARGS)

soak: ## the long tests: all of them, one after another
	@$(call ready,soak)
	cargo run --release --locked -p amalgam-tests --bin soak -- all

daily: ## random sequences of edits, Git, undo, redo and restore against their model (SEQUENCES=10000)
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
