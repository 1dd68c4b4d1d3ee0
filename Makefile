# `make` alone prints what there is.
.DEFAULT_GOAL := help
.PHONY: help demo dev build test test/leaks test/upgrade test/jaeger jaeger bench bench/go bench/peers guarantees faults sim sim/mutants fuzz nightly lint fmt generate verify \
	check-bench check-deploy check-deploy/quick check-webhook check-generated check-golden check-modules postgres compiler

# Arguments for what a target runs: make demo ARGS='--duration 60s --workers 5'
ARGS ?=

help: ## what you are reading
	@awk 'BEGIN { FS = ":.*## " } /^[a-z\/-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  ARGS='...' passes arguments on, for example: make demo ARGS='--workers 5'"

demo: postgres build ## a cluster of workers that survives a kill -9, in 15 seconds
	@bin/keyline demo --duration 15s --workers 3 $(ARGS)

dev: postgres build ## a database and a worker to play with, until Ctrl-C
	@bin/keyline dev $(ARGS)

build: ## the keyline program, into bin/
	@CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/keyline

test: postgres compiler ## all tests, with the race detector, on a real PostgreSQL
	@# The time-out is against hangs: cli took from 2.5 to 11 minutes, by how quickly a machine starts processes.
	go test -race -timeout 25m $(ARGS) ./...

test/jaeger: postgres ## the reference application's waterfall, on a real Jaeger
	@jaeger=$$(scripts/jaeger --path) && KEYLINE_TEST_JAEGER=$$jaeger go test -count=1 -run '^TestJaeger' $(ARGS) ./examples/crm/cmd/crm

jaeger: ## a Jaeger on loopback ports, until Ctrl-C: docs/tracing.md
	@scripts/jaeger

test/upgrade: postgres ## live workers through an upgrade and back, the release before built from the history
	@KEYLINE_TEST_UPGRADE=1 go test -count=1 -v -timeout 9m -run '^TestUpgrade' $(ARGS) ./cli/internal/demo

test/leaks: compiler ## 100,000 records activated: memory and goroutines stay where they were
	go test -race -count=1 -v -run ManyActivationsLeaveNothingBehind ./supervisor -leaks.records 100000 $(ARGS)

bench: postgres build ## the drain benchmark: 200,000 records, 4 consumers
	@bin/keyline bench drain --records 200000 --consumers 4 --json $(ARGS)

bench/go: postgres ## the Go benchmarks by benchstat, allocations included: make bench/go BENCH=Delivery BASE=HEAD~1 compares
	@BENCH='$(BENCH)' BASE='$(BASE)' COUNT='$(COUNT)' TIME='$(TIME)' OUT='$(OUT)' scripts/go-bench

bench/peers: postgres build ## side by side with River, gue, watermill-sql, DBOS and others: make bench/peers OUT=f.json
	@cd bench && go run ./peers --keyline ../bin/keyline --out "$(abspath $(or $(OUT),peers.json))" $(if $(PLOTS),--plots "$(abspath $(PLOTS))") $(ARGS)

guarantees: postgres compiler ## each promise of docs/guarantees.md by its tests
	@go run ./internal/guarantees $(ARGS)

# Scenarios by number: make faults N=20,21
N ?=

faults: postgres ## kills, frozen processes, cut networks on real PostgreSQL; N=20,21 chooses
	@go run ./internal/faults -n '$(N)' $(ARGS)

# How many schedules; or one, by its seed, with its trace: make sim SEED=42
RUNS ?= 20000
SEED ?=

sim: ## random schedules of faults on the delivery core: make sim RUNS=100000
	@go run ./internal/sim/simulate -runs '$(RUNS)' -seed '$(SEED)' $(ARGS)

sim/mutants: ## each protocol rule broken on its own: one that no schedule notices fails
	@go test -count=1 -v -run 'NoticesEveryMutant' ./internal/sim ./listener $(ARGS)

# How long for each target.
FUZZTIME ?= 10s

fuzz: postgres ## every fuzz target for a while: make fuzz FUZZTIME=5m
	@FUZZTIME='$(FUZZTIME)' scripts/fuzz $(ARGS)

nightly: ## what takes too long for every change
	$(MAKE) --no-print-directory guarantees
	$(MAKE) --no-print-directory faults
	$(MAKE) --no-print-directory sim RUNS=1000000
	$(MAKE) --no-print-directory fuzz FUZZTIME=2m
	$(MAKE) --no-print-directory check-deploy
	$(MAKE) --no-print-directory test/jaeger

lint: ## golangci-lint, with the import table
	@scripts/golangci-lint run $(ARGS)

fmt: ## format the code
	@scripts/golangci-lint fmt

generate: ## write generated files anew
	go generate ./...

verify: lint check-generated check-golden check-modules ## all checks that are not tests
	go vet ./...

check-webhook: ## what webhooks send, by the libraries of who will read it
	cd webhook/check && go vet ./... && go test -count=1 ./... $(ARGS)

check-bench: ## whether bench/peers would see a wrong run
	cd bench && go vet ./... && go test -count=1 ./... $(ARGS)

check-deploy: ## what lies in deploy/, by the parsers of who will read it
	cd deploy/check && go vet ./... && go test -count=1 ./... $(ARGS)

check-deploy/quick: ## the same without those parsers that take minutes to compile
	cd deploy/check && go vet . && go test -count=1 . $(ARGS)

# Not in the help: parts of the above.
check-generated:
	@scripts/check-generated

check-golden: postgres
	@scripts/check-golden

check-modules:
	go mod verify
	go mod tidy -diff

postgres:
	@scripts/ensure-postgres

compiler:
	@command -v "$$(go env CC)" >/dev/null || { \
		echo "The race detector needs a C compiler and there is none. On Debian: sudo apt-get install -y gcc libc6-dev" >&2; exit 1; }
