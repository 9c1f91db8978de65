# Every command of the project; `make help` lists them. Needs Python 3.11+, Rust, make, and a C and
# C++ compiler (for the fuzzers).

PYTHON ?= python3
SEED ?=
SEEDS ?=
FUZZ_SECONDS ?= 15
# Processes of pytest: a test waits for the processes of its jobs about half of the time.
TEST_JOBS ?= $(shell echo $$(($$(nproc) + 2)))
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
# What `make server`, and each of what `make wheel`, is for: x86_64 or aarch64. Another machine than
# this one needs `rustup target add` and a cross compiler (Debian's gcc-aarch64-linux-gnu).
MACHINE := $(shell uname -m)
ARCH ?= $(MACHINE)
ARCHS ?= $(ARCH)
STATIC_TARGET = $(ARCH)-unknown-linux-gnu
CROSS_LINKER = $(if $(filter-out $(MACHINE),$(ARCH)),CARGO_TARGET_$(shell echo $(ARCH) \
	| tr a-z A-Z)_UNKNOWN_LINUX_GNU_LINKER=$(ARCH)-linux-gnu-gcc)
# Of the binary that runs anywhere; the same for `server` and `wheel`, so that it is compiled once.
STATIC = CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_RELEASE_DEBUG=false \
	RUSTFLAGS="-C target-feature=+crt-static" $(CROSS_LINKER)
RELEASE := $(TOOLS)/release
TENSORFLOW := target/tensorflow
MXNET := target/mxnet
JAX_OLD := target/jax-old
CLOUDS := target/clouds
DIST := target/dist
# Which images `make images` builds, and what the worker's is made from: an image, or a Debian of a
# suite.
IMAGES ?= server worker
WORKER_BASE ?=
WORKER_DEBIAN ?=
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
NATIVE_SOURCES := Cargo.toml Cargo.lock pyproject.toml lab/pyproject.toml \
	$(shell find crates lab/crates -name '*.rs' -o -name '*.proto' -o -name Cargo.toml)

# The product, and the laboratory in lab/, are two distributions with a module each.
DEVELOP := VIRTUAL_ENV=$(abspath $(VENV)) $(abspath $(BIN))/maturin develop --quiet --uv --release --locked

.DELETE_ON_ERROR:
.PHONY: help setup demo test test-rust test-python kubernetes-tools workflow-tools libfabric sim mutants sanitize fuzz wheel server-wheel dist wheel-check matrix release images ray-check tensorflow-check mxnet-check jax-old-check clouds-check kubernetes-check bench chaos docs site site-links server fmt check lock ci clean

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

test-python: setup kubernetes-tools workflow-tools
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal

kubernetes-tools: setup ## Fetch Helm and the schemas that the tests of deploy/ need, once.
	@$(BIN)/python tests/kubernetes/tools.py $(TOOLS)/kubernetes

workflow-tools: ## Fetch the linter of .github/workflows, once; its test is skipped without.
	@test -x $(TOOLS)/bin/actionlint || GOBIN=$(TOOLS)/bin go install $(ACTIONLINT) \
		|| echo "MISSING actionlint: \`go\` cannot install it; its test will be skipped" >&2

libfabric: ## Install libfabric (Debian, Ubuntu), which tests of placed writes are skipped without.
	sudo=$$(test "$$(id -u)" = 0 || echo sudo); \
		$$sudo apt-get update && $$sudo apt-get install --yes libfabric1

sim: ## Simulate faults: SEED=n replays one seed, SEEDS=n tries that many.
	$(if $(SEED),SUMPTER_SIM_SEED=$(SEED)) $(if $(SEEDS),SUMPTER_SIM_SEEDS=$(SEEDS)) \
		cargo test --release --locked -p sumpter-engine --test sim -- --nocapture

mutants: setup ## Plant bugs in the protocol, one after the other; each must be found.
	$(BIN)/python tests/mutants/mutants.py

$(TOOLS)/bin/cargo-fuzz:
	cargo install cargo-fuzz --version 0.13.2 --debug --locked --root $(TOOLS)

sanitize: ## Run the Rust tests under ThreadSanitizer and AddressSanitizer (needs a nightly Rust).
	$(PYTHON) tests/sanitize/sanitize.py

fuzz: $(TOOLS)/bin/cargo-fuzz ## Fuzz every decoder for FUZZ_SECONDS each, as many at once as cores.
	PATH="$(TOOLS)/bin:$$PATH" cargo fuzz build --sanitizer none --target-dir target/fuzz
	@PATH="$(TOOLS)/bin:$$PATH" cargo fuzz list | xargs -P $$(nproc) -I{} sh -c \
		'PATH="$(TOOLS)/bin:$$PATH" cargo fuzz run --sanitizer none --target-dir target/fuzz {} -- \
			-max_total_time=$(FUZZ_SECONDS) > target/fuzz/{}.log 2>&1 \
			&& echo "{}: $$(grep ^Done target/fuzz/{}.log)" \
			|| { cat target/fuzz/{}.log; exit 255; }'

$(RELEASE)/.installed: requirements/release.txt | $(VENV)/.created
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --require-hashes -r requirements/release.txt
	@touch $@

# Packages that are there are what is checked and installed, as they are; `make wheel` makes new ones.
$(DIST):
	$(MAKE) --no-print-directory wheel

dist: | $(DIST) $(VENV)/.created
	$(BIN)/python deploy/release/release.py verify

wheel: $(RELEASE)/.installed ## Build wheels, source distributions and lists of crates in target/dist.
	rm -rf target/wheel/server $(DIST)
	for arch in $(ARCHS); do \
		$(MAKE) --no-print-directory server-wheel ARCH=$$arch || exit 1; \
	done
	$(RELEASE)/bin/python deploy/release/wheels.py --servers target/wheel/server/*.whl

server-wheel: $(RELEASE)/.installed
	$(STATIC) $(RELEASE)/bin/maturin build --release --locked --auditwheel skip \
		--target $(STATIC_TARGET) --manifest-path crates/server/Cargo.toml --out target/wheel/server

wheel-check: dist $(VENV)/.dependencies ## Install the packages of target/dist in empty environments, and use them.
	$(BIN)/python tests/wheel/wheel.py $(DIST)

matrix: dist $(VENV)/.dependencies ## Try the wheel of target/dist on every Python at hand, with an old and a new PyTorch.
	$(BIN)/python tests/matrix/matrix.py --wheel $(DIST)/sumpter-*_$(MACHINE).whl

release: $(RELEASE)/.installed ## All of a release but the upload; REHEARSAL=1 does not ask for a tag.
	$(RELEASE)/bin/python deploy/release/release.py check $(if $(REHEARSAL),--rehearsal)
	$(MAKE) --no-print-directory wheel
	$(RELEASE)/bin/python deploy/release/release.py finish

images: server $(RELEASE)/.installed $(if $(filter worker,$(IMAGES)),dist) ## Build container images in target/images.
	$(RELEASE)/bin/python deploy/release/images.py $(IMAGES) \
		$(if $(WORKER_BASE),--base $(WORKER_BASE)) \
		$(if $(WORKER_DEBIAN),--debian $(WORKER_DEBIAN))

ray-check: setup ## Install Ray into .venv, and run the tests that need it.
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python \
		--require-hashes -r requirements/ray.txt
	$(BIN)/python -m pytest tests/python/ray

# Makes both distributions those of another environment as well, with their commands. Their modules
# are of the stable ABI: what `make setup` has compiled serves every Python.
define link
	rm -rf $(1)/lib/python3*/site-packages/sumpter*
	cp -r $(VENV)/lib/python3*/site-packages/sumpter* $(1)/lib/python3*/site-packages/
	sed '1s|.*|#!$(abspath $(1)/bin/python)|' $(BIN)/sumpter > $(1)/bin/sumpter
	chmod +x $(1)/bin/sumpter
endef

# TensorFlow's LLVM and that of Triton, which torch brings, end a process that has both.
$(TENSORFLOW)/.installed: requirements/tensorflow.txt | setup
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(TENSORFLOW)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(TENSORFLOW)/bin/python --require-hashes \
		-r requirements/tensorflow.txt
	@touch $@

tensorflow-check: setup $(TENSORFLOW)/.installed ## Make an environment with TensorFlow, and run the tests that need it.
	$(call link,$(TENSORFLOW))
	$(TENSORFLOW)/bin/python -m pytest -n $(TEST_JOBS) --dist worksteal -k "tensorflow or keras" \
		tests/python/tensorflow tests/python/docs/test_commands.py \
		tests/python/docs/test_pages.py tests/python/observe/test_fronts.py \
		tests/python/fronts/test_mixed_fronts.py

# MXNet needs an older NumPy than all else, which only Python 3.11 has.
$(MXNET)/.installed: requirements/mxnet.txt | setup
	$(BIN)/uv venv --quiet --clear --python 3.11 $(MXNET)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(MXNET)/bin/python --require-hashes \
		-r requirements/mxnet.txt
	@touch $@

mxnet-check: setup $(MXNET)/.installed ## Make an environment with MXNet, and run the tests that need it.
	$(call link,$(MXNET))
	$(MXNET)/bin/python -m pytest -n $(TEST_JOBS) --dist worksteal -k mxnet \
		tests/python/mxnet tests/python/observe/test_fronts.py \
		tests/python/docs/test_commands.py tests/python/fronts/test_mixed_fronts.py

# The extra `jax` has the newest JAX of Python 3.11, in .venv.
$(JAX_OLD)/.installed: requirements/jax-old.txt | setup
	$(BIN)/uv venv --quiet --clear --python 3.11 $(JAX_OLD)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(JAX_OLD)/bin/python --require-hashes \
		-r requirements/jax-old.txt
	@touch $@

jax-old-check: setup $(JAX_OLD)/.installed ## Make an environment with an old JAX, and run the tests of JAX.
	$(call link,$(JAX_OLD))
	$(JAX_OLD)/bin/python -m pytest tests/python/jax tests/python/observe/test_fronts.py

$(CLOUDS)/.installed: requirements/clouds.txt | setup
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(CLOUDS)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(CLOUDS)/bin/python --require-hashes \
		-r requirements/clouds.txt
	@touch $@

clouds-check: setup $(CLOUDS)/.installed ## Fetch SkyPilot and dstack, and let them read the files of deploy/.
	$(BIN)/python -m pytest tests/python/clouds

kubernetes-check: setup kubernetes-tools ## Build a control plane, and install the chart into it.
	$(BIN)/python tests/kubernetes/build.py $(TOOLS)/control-plane
	$(BIN)/python -m pytest tests/python/kubernetes/test_control_plane.py

bench: setup ## Two numbers of an emulated cluster (root): share of the optimum, gain over Gloo.
	$(BIN)/sumpter bench emulate --workers 4 --servers 2 --rate-mbit 200 --bytes 64MiB --rounds 5

chaos: setup ## Train while servers, links and connections fail (root): SEED=n, CHAOS_SECONDS=n.
	for example in digits server_optimizer_digits; do \
		$(BIN)/sumpter bench chaos --seconds $(CHAOS_SECONDS) --seed $(or $(SEED),1) \
			--coordinator-restarts -- $(BIN)/python examples/$$example.py || exit 1; \
	done

docs: setup ## Regenerate the pages made from code.
	$(BIN)/sumpter config --markdown > docs/user/configuration.md
	$(BIN)/python tests/python/reference/api_page.py > docs/user/api.md
	$(BIN)/python tests/python/support/records.py > lab/records/index.md
	$(BIN)/python -m sumpter_lab.tables

site: setup ## Build the documentation as a site into target/site, and check its links.
	$(BIN)/python docs/site/build.py target/site

site-links: setup ## Ask every other host that the documentation links (needs the network).
	$(BIN)/python docs/site/build.py target/site-links --external

server: ## Build the static sumpter-server, which needs no Python.
	$(STATIC) cargo build --release --locked --target $(STATIC_TARGET) -p sumpter-server
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
	for name in dev release worker mxnet tensorflow jax-old clouds; do \
		$(PIP_COMPILE) requirements/$$name.in -o requirements/$$name.txt || exit 1; \
	done
	$(PIP_COMPILE) --constraint requirements/dev.txt requirements/ray.in -o requirements/ray.txt
	cargo update --workspace

ci: ## Exactly what continuous integration runs.
	.ci/run

clean: ## Remove what the commands above have made.
	rm -rf $(VENV) target
