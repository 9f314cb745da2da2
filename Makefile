# Every target does its own set-up: see scripts/setup. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

# What comes through the network comes while the compiler works. Several goals, as of `make clean test`, follow each other.
ifeq ($(words $(MAKECMDGOALS)),1)
MAKEFLAGS += --jobs=3
endif

RUN := . scripts/environment &&
NATIVE := python/parshall/_native.abi3.so
LIBPCAP := python/parshall/libpcap/libpcap.so.0.8
# Directories are among them, so that a file that was removed counts as a change, too.
NATIVE_SOURCES := $(shell find crates bpf Cargo.toml Cargo.lock -not -name '.*')

.PHONY: help demo test test-long bench attack lint docs build rust-tests dist clean
.PHONY: system-base system-attack system-browsers system-bench system-report system-programs system-releases rust

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(NATIVE) .venv/installed ## the tour: measure a testbed on this machine and write demo-report/
	@$(RUN) .venv/bin/parshall demo -o demo-report

test: build system-report system-programs ## the tests of Rust and Python; those of the kernel need root
	@$(RUN) scripts/test

test-long: build system-report system-programs system-languages system-browsers ## the tests that are slow by nature: before a change to their subject is done
	@$(RUN) scripts/test --long

bench: build system-bench ## the benchmarks in benches/
	@scripts/setup extra bench
	@$(RUN) .venv/bin/python3 benches/run

attack: build system-attack ## the attacks of tests/hostile at length: more than an hour, needs root
	@$(RUN) .venv/bin/python3 tests/hostile/attack.py

lint: build ## formatting, lints and types of Rust and Python
	@$(RUN) scripts/lint

docs: .venv/requirements.txt ## the site of the documentation, with the API reference, into site/; checks its links
	@scripts/setup extra docs
	@scripts/site

build: $(NATIVE) .venv/installed rust-tests ## .venv with the command parshall in it, and the tests of Rust

rust-tests: $(NATIVE)
	@$(RUN) cargo test --release --config scripts/test-profile.toml --workspace --no-run --quiet

dist: .venv/installed system-releases ## packages into dist/, tested in clean roots of Debian (docs/release.md): an hour or more, needs root
	@$(RUN) scripts/dist

clean: ## remove everything that was built or installed in this checkout
	rm -rf target .venv .build dist demo-report bench-results site $(NATIVE) $(dir $(LIBPCAP)) python/parshall/report/page/vega.js
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .pytest_cache .hypothesis .ruff_cache .mypy_cache

# --- set-up ---------------------------------------------------------------------------------------

system-base:
	@scripts/setup packages

system-attack: system-base
	@scripts/setup packages attack

system-languages: system-base
	@scripts/setup packages languages

system-browsers: system-base
	@scripts/setup packages browsers

system-bench: system-base
	@scripts/setup packages bench

system-report: system-base
	@scripts/setup packages report

system-programs: system-base
	@scripts/setup packages programs
	@scripts/setup suricata
	@scripts/setup promtool

system-releases: system-base
	@scripts/setup packages releases

rust: system-base
	@scripts/setup rust

# The requirements are in .venv. A checkout that was moved or copied needs a new one: a virtual
# environment has its own path written into it.
VENV_IS_OURS := $(shell [ "$$(cat .venv/checkout 2>/dev/null)" = "$$PWD" ] && [ -x .venv/bin/python3 ] && echo yes)
.venv/requirements.txt: pyproject.toml constraints.txt $(if $(VENV_IS_OURS),,FORCE) | system-base
	@scripts/setup venv
	@touch $@

.venv/installed: .venv/requirements.txt | rust
	@scripts/setup package
	@touch $@

$(NATIVE): $(NATIVE_SOURCES) | rust
	@$(RUN) PARSHALL_COMMIT=$$(git describe --always --dirty --abbrev=12 --exclude '*') cargo build --release --workspace
	@install -D -s -m 755 target/release/libparshall_pcap.so $(LIBPCAP)
	@install -m 755 target/release/lib_native.so $@

.PHONY: FORCE
FORCE:
