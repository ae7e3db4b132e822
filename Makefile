# Everything that a contributor and CI call. `make` alone explains it.

# Packages whose tests run at the same time. One, because they share a broker and a database and
# measure how late these are.
PARALLEL ?= 1
# Tests of these packages, and a pattern for their names.
PACKAGES ?= ./...
RUN ?=
TIMEOUT ?= 20m
FUZZTIME ?= 30s

GOLANGCI_LINT := v2.15.0
VERSION       := $(shell git describe --tags --always --dirty 2>/dev/null || echo development)

.PHONY: help
help:
	@echo "make demo        start what it needs and show unpaid orders being closed on time"
	@echo "make demo JSON=1     the same, with one JSON object alone on standard output"
	@echo "make test        start what they need and run the tests"
	@echo "                     RACE=1, V=1 (say all), PACKAGES=./amqp/..., RUN=pattern, TIMEOUT=$(TIMEOUT), PARALLEL=$(PARALLEL)"
	@echo "make test-race   the tests with the race detector"
	@echo "make fuzz        each fuzz test for FUZZTIME=$(FUZZTIME)"
	@echo "make lint        golangci-lint, with the rules for who imports whom"
	@echo "make screenshots  pictures of the operators' page, into deploy/docs"
	@echo "make build       bin/lapse"
	@echo "make up          start RabbitMQ and MySQL, unless they run; .run/env tells where"
	@echo "make down        stop what was started; PURGE=1 removes its data too"

.PHONY: up
up:
	@deploy/dev/up >&2

.PHONY: down
down:
	@deploy/dev/down $(if $(PURGE),--purge) >&2

.PHONY: build
build:
	@go build -ldflags '-X main.version=$(VERSION)' -o bin/lapse ./cmd/lapse >&2

.PHONY: demo
demo: up build
	@. .run/env && bin/lapse demo $(if $(JSON),--output json)

# -p is also how many packages are built at the same time, hence the build before.
.PHONY: test
test:
	@deploy/dev/up --tests >&2
	@go build $(if $(RACE),-race) ./...
	@. .run/env && go test -count=1 -timeout $(TIMEOUT) -p $(PARALLEL) $(if $(V),-v) $(if $(RACE),-race) $(if $(RUN),-run '$(RUN)') $(PACKAGES)

.PHONY: screenshots
screenshots:
	@deploy/dev/up --tests >&2
	@mkdir -p deploy/docs
	@. .run/env && LAPSE_SCREENSHOTS="$$PWD/deploy/docs" go test -count=1 -run PagesInBothThemes ./order/web

.PHONY: test-race
test-race: RACE = 1
test-race: test

.PHONY: fuzz
fuzz: up
	@. .run/env && \
	found=$$(go test -list '^Fuzz' $(PACKAGES)) || { echo "$$found" >&2; exit 1; }; \
	echo "$$found" | awk '/^Fuzz/ { names[++n] = $$1 } /^ok/ { for (i = 1; i <= n; i++) print names[i], $$2; n = 0 }' | \
	while read -r name package; do \
		echo "$$name in $$package"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null || exit 1; \
	done

# The first time takes some minutes; then the program is kept in .run/bin.
LINTER := .run/bin/golangci-lint-$(GOLANGCI_LINT)
$(LINTER):
	@echo "building golangci-lint $(GOLANGCI_LINT)" >&2
	@mkdir -p .run/bin
	@GOBIN="$$PWD/.run/bin" GOFLAGS= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT)
	@mv .run/bin/golangci-lint $@

.PHONY: lint
lint: $(LINTER)
	@$(LINTER) run ./...
