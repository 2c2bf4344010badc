# Two commands matter: `make demo` shows what this is for, `make test` whether it is right. Both set up what they need.
export PATH := $(PATH):$(HOME)/.cargo/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
# More options, e.g. `make demo ARGS="--ranks 4 --videos ~/clips"`.
ARGS :=

.PHONY: help setup build demo test bench bench-ring bench-live bench-python paper loom crash fuzz fuzz-media results \
	python-test mindspore-test features-test peers

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: ## install what a bare Debian 12 lacks
	@sh ci/setup.sh

build: setup ## the release binaries
	@cargo build --locked --release --bins

demo: build ## eight ranks fed from real video under three policies, side by side
	@$(TARGET)/release/helix demo $(ARGS)

test: setup ## every check, as CI runs them
	@sh ci/all.sh

bench: setup ## the benchmarks
	@cargo bench --locked $(ARGS)

bench-ring: setup ## the ring beside iceoryx2, rtrb, crossbeam, pipes and sockets, as ratios to the floor
	@sh ci/bench-ring.sh $(ARGS)

paper: build ## the eleven workloads under each system, in virtual time; rows and a plot
	@$(TARGET)/release/helix bench --workload all $(ARGS)

bench-live: build ## the workloads through real daemons, workers and rings; decoding and compute are slept
	@$(TARGET)/release/helix bench --live $(ARGS)

loom: setup ## the ring and the doorbell under every interleaving
	@sh ci/loom.sh

crash: setup ## ten thousand kill -9 at named points and random instants; CRASH_KILLS=1000 for fewer
	@CRASH_KILLS=$${CRASH_KILLS:-10000} sh ci/crash.sh

fuzz: setup ## hostile bytes for everything that is read from peers and files, a minute each
	@sh ci/fuzz.sh 60

fuzz-media: setup ## 20,000 mutated media files through daemons, workers and ranks; MEDIA_MUTANTS=2000 for fewer
	@sh ci/fuzz-media.sh

results: build ## the rows that benchmarks and demo left, those that do not hold first
	@$(TARGET)/release/helix results $(ARGS) || [ $$? -eq 1 ] # 1: some do not hold, which is what one came to read

python-test: setup ## the Python package: wheel, torch, numpy
	@sh ci/python.sh $(ARGS)

mindspore-test: setup ## the face for MindSpore, beside a MindSpore from PyPI in an environment of its own
	@sh ci/mindspore.sh $(ARGS)

peers: build ## our loader in a feed benchmark from elsewhere: PEERS=its folder; ARGS="--workloads vivit-b"
	@sh ci/peers.sh $(ARGS)

features-test: setup ## objects in stores and captions as token ids, which are behind features
	@cargo test --locked --features object-store --test objects
	@cargo test --locked --features tokenizers --lib tokens

bench-python: build ## what next() costs in Python on a batch that is ready; ARGS=data.arrow
	@sh ci/bench-python.sh $(ARGS)
