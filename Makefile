# Every command of the project; `make help` lists them. Needs Python 3.11+, Rust, make, and a C and
# C++ compiler (for the fuzzers).

PYTHON ?= python3
SEED ?=
SEEDS ?=
FUZZ_SECONDS ?= 40
TEST_JOBS ?= 2
# Those that criterion runs, once with --test.
BENCHES := kernels lane placement queue
CHAOS_SECONDS ?= 30

VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(abspath target/tools)
PIP_COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-header --no-emit-index-url
# For lints of the seam; maturin sets the same.
export PYO3_PYTHON := $(abspath $(BIN)/python)
STATIC_TARGET := $(shell uname -m)-unknown-linux-gnu
NATIVE_SOURCES := Cargo.toml Cargo.lock pyproject.toml lab/pyproject.toml \
	$(shell find crates lab/crates -name '*.rs' -o -name '*.proto' -o -name Cargo.toml)

# The product, and the laboratory in lab/, are two distributions with a module each.
DEVELOP := VIRTUAL_ENV=$(abspath $(VENV)) $(abspath $(BIN))/maturin develop --quiet --uv --release --locked

.DELETE_ON_ERROR:
.PHONY: help setup demo test test-rust test-python kubernetes-tools sim mutants sanitize fuzz matrix wheel-check ray-check bench chaos docs site site-links server fmt check lock ci clean

help: ## List these commands.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(VENV)/.native ## Make .venv with all dependencies, the compiled modules and the command.

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "sumpter needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12"; \
		exit 1; }
	@command -v cargo >/dev/null || { echo "sumpter needs Rust (cargo) 1.94 or newer"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.dependencies: requirements/uv.txt requirements/dev.txt | $(VENV)/.created
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes \
		requirements/dev.txt
	@touch $@

$(VENV)/.native: $(NATIVE_SOURCES) $(VENV)/.dependencies
	$(DEVELOP)
	cd lab && $(DEVELOP)
	@touch $@

demo: setup ## Train the digits model with 2 workers and 1 server on this machine.
	$(BIN)/sumpter run -n 2 -s 1 -- $(BIN)/python examples/digits.py

test: test-rust test-python ## All tests: Rust, simulation, Python, tidy, examples.

test-rust: setup
	cargo test --release --locked --workspace
	cargo test --release --locked --workspace $(addprefix --bench ,$(BENCHES)) -- --test

test-python: setup kubernetes-tools
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal

kubernetes-tools: setup ## Fetch Helm and the schemas that the tests of deploy/ need, once.
	@$(BIN)/python tests/kubernetes/tools.py $(TOOLS)/kubernetes

sim: ## Simulate faults: SEED=n replays one seed, SEEDS=n tries that many.
	$(if $(SEED),SUMPTER_SIM_SEED=$(SEED)) $(if $(SEEDS),SUMPTER_SIM_SEEDS=$(SEEDS)) \
		cargo test --release --locked -p sumpter-engine --test sim -- --nocapture

mutants: setup ## Plant bugs in the protocol, one after the other; the simulation must find each.
	$(BIN)/python tests/mutants/mutants.py

$(TOOLS)/bin/cargo-fuzz:
	cargo install cargo-fuzz --version 0.13.2 --locked --root $(TOOLS)

sanitize: ## Run the Rust tests under ThreadSanitizer and AddressSanitizer (needs a nightly Rust).
	$(PYTHON) tests/sanitize/sanitize.py

fuzz: $(TOOLS)/bin/cargo-fuzz ## Fuzz every decoder for FUZZ_SECONDS each, as many at once as cores.
	PATH="$(TOOLS)/bin:$$PATH" cargo fuzz build --sanitizer none --target-dir target/fuzz
	@PATH="$(TOOLS)/bin:$$PATH" cargo fuzz list | xargs -P $$(nproc) -I{} sh -c \
		'PATH="$(TOOLS)/bin:$$PATH" cargo fuzz run --sanitizer none --target-dir target/fuzz {} -- \
			-max_total_time=$(FUZZ_SECONDS) > target/fuzz/{}.log 2>&1 \
			&& echo "{}: $$(grep ^Done target/fuzz/{}.log)" \
			|| { cat target/fuzz/{}.log; exit 255; }'

matrix: setup ## Try one wheel on every Python at hand, with an old and the newest PyTorch.
	$(BIN)/python tests/matrix/matrix.py

wheel-check: setup ## Try the product's wheel in an environment without optional dependencies.
	$(BIN)/python tests/wheel/wheel.py

ray-check: setup ## Install Ray into .venv, and run the tests that need it.
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/ray.txt
	$(BIN)/python -m pytest tests/python/ray

bench: setup ## Two numbers of an emulated cluster (root): share of the optimum, gain over Gloo.
	$(BIN)/sumpter bench emulate --workers 4 --servers 2 --rate-mbit 200 --bytes 64MiB --rounds 5

chaos: setup ## Train while servers, links and connections fail (root): SEED=n, CHAOS_SECONDS=n.
	for example in digits server_optimizer_digits; do \
		$(BIN)/sumpter bench chaos --seconds $(CHAOS_SECONDS) --seed $(or $(SEED),1) \
			--coordinator-restarts -- $(BIN)/python examples/$$example.py || exit 1; \
	done

docs: setup ## Regenerate the pages made from code.
	$(BIN)/sumpter config --markdown > docs/user/configuration.md
	$(BIN)/python tests/python/support/api_page.py > docs/user/api.md
	$(BIN)/python tests/python/support/records.py > lab/records/index.md

site: setup ## Build the documentation as a site into target/site, and check its links.
	$(BIN)/python docs/site/build.py target/site

site-links: setup ## Ask every other host that the documentation links (needs the network).
	$(BIN)/python docs/site/build.py target/site-links --external

server: ## Build the static sumpter-server, which needs no Python.
	CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_RELEASE_DEBUG=false \
		RUSTFLAGS="-C target-feature=+crt-static" \
		cargo build --release --locked --target $(STATIC_TARGET) -p sumpter-server
	@ldd $(or $(CARGO_TARGET_DIR),target)/$(STATIC_TARGET)/release/sumpter-server 2>&1 \
		| grep -E 'static|not a dynamic'

fmt: setup ## Format all code.
	cargo fmt
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: setup ## Formatting, lints, and the stubs against the compiled modules.
	cargo fmt --check
	cargo clippy --release --locked --workspace --all-targets -- -D warnings
	RUSTFLAGS="--cfg fuzzing" cargo clippy --locked --manifest-path fuzz/Cargo.toml \
		--target-dir target/fuzz-check -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest tests/python/project/test_stub.py

lock: $(VENV)/.created ## Pin dependencies anew after a change of *.in or Cargo.toml.
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet -r requirements/uv.in
	$(PIP_COMPILE) requirements/uv.in -o requirements/uv.txt
	$(PIP_COMPILE) requirements/dev.in -o requirements/dev.txt
	$(PIP_COMPILE) --constraint requirements/dev.txt requirements/ray.in -o requirements/ray.txt
	cargo update --workspace

ci: ## Exactly what continuous integration runs.
	.ci/run

clean: ## Remove what the commands above have made.
	rm -rf $(VENV) target
