# Thin: every target is a script or a CMake preset that can be run by hand. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BUILD := build/release
JOBS ?= $(shell nproc)
SEED ?= 0
comma := ,
CARDS := $(basename $(notdir $(wildcard configs/cards/*.toml)))
RECIPES := $(basename $(notdir $(wildcard configs/recipes/*.toml)))
PROGRAMS := millrace millrace-model millrace-buffer millrace-learner millrace-rollout

.PHONY: help quickstart quickstart-tiny recipe card test check format programs bench proof-seeds proof-recipes proof-fuzz proof-tokenizers proof-templates proof-tsan proof-compose clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 28

quickstart: ## Teach SmolLM2-135M to turn log lines into JSON by asynchronous GRPO (installs, builds, trains)
	@scripts/setup --torch --model
	@$(MAKE) programs
	@scripts/import-quickstart-model $(BUILD)/bin/millrace
	@$(BUILD)/bin/millrace train configs/quickstart.toml --set run.seed=$(SEED)

quickstart-tiny: ## The same loop on a 1 M-parameter model from random weights, no download of a model, under 4 minutes
	@scripts/setup --torch
	@$(MAKE) programs
	@$(BUILD)/bin/millrace train configs/quickstart-tiny.toml --set run.seed=$(SEED)

recipe: ## NAME=sentence_json|order_json|dates|calculator|mixture: teach SmolLM2-135M a task on two cores (docs/tasks.md)
	@[ -f configs/recipes/$(NAME).toml ] || { echo "make: NAME=$(NAME): no configs/recipes/$(NAME).toml; there are: $(RECIPES)"; exit 2; }
	@scripts/setup --torch --model
	@$(MAKE) programs
	@scripts/import-quickstart-model $(BUILD)/bin/millrace
	@$(BUILD)/bin/millrace train configs/recipes/$(NAME).toml --set run.seed=$(SEED)

card: ## NAME=gsm8k-qwen3-0.6b MODEL=FOLDER: a run of configs/cards on this machine's GPUs (docs/cards.md)
	@[ -f configs/cards/$(NAME).toml ] || { echo "make: NAME=$(NAME): no configs/cards/$(NAME).toml; there are: $(CARDS)"; exit 2; }
	@[ -f "$(MODEL)/config.json" ] || { echo "make: MODEL=$(MODEL): no model there; it is the folder with config.json, *.safetensors and tokenizer.json"; exit 2; }
	@command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ] || { echo "make: no nvcc: install the CUDA 13 toolkit first"; exit 2; }
	@scripts/setup --torch
	@echo "make: building the programs for CUDA (the first time takes a while)"
	@cmake --preset cuda -DMILLRACE_TESTS=OFF > /dev/null
	@ninja -C build/cuda -j$(JOBS) $(PROGRAMS)
	@build/cuda/bin/millrace train configs/cards/$(NAME).toml --set model.path=$(MODEL) --set run.seed=$(SEED)

test: ## Build and run all tests
	@scripts/setup --torch --model
	@echo "make: building the tests (the first time takes a while)"
	@cmake --preset release > build-configure.log 2>&1 || { cat build-configure.log; rm -f build-configure.log; exit 1; }
	@rm -f build-configure.log
	@ninja -C $(BUILD) -j$(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

programs:
	@echo "make: building the programs (the first time takes a while)"
	@cmake --preset release > build-configure.log 2>&1 || { cat build-configure.log; rm -f build-configure.log; exit 1; }
	@rm -f build-configure.log
	@ninja -C $(BUILD) -j$(JOBS) $(PROGRAMS)

check: ## Format, include rules, clang-tidy and thread-safety analysis
	@scripts/check

format: ## Format the sources
	@git ls-files '*.h' '*.cc' '*.cu' | xargs clang-format-14 -i

bench: ## Measure against the peers and print the table of docs/benchmarks.md
	@scripts/setup --torch --model
	@$(MAKE) programs
	@scripts/import-quickstart-model $(BUILD)/bin/millrace
	@bench/run

proof-seeds: ## Three seeds of both quickstarts, table for docs/results.md
	@scripts/setup --torch --model
	@$(MAKE) programs
	@scripts/import-quickstart-model $(BUILD)/bin/millrace
	@scripts/proof-seeds

proof-recipes: ## Three seeds of every recipe (hours), tables for docs/results.md
	@scripts/setup --torch --model
	@$(MAKE) programs
	@scripts/import-quickstart-model $(BUILD)/bin/millrace
	@scripts/proof-seeds --configs $(subst $() ,$(comma),$(addprefix recipes/,$(RECIPES)))

proof-fuzz: ## Every fuzz target for a minute under AddressSanitizer (libFuzzer where clang-14 is, else own mutations)
	@scripts/proof-fuzz

proof-tokenizers: ## 100,000 random strings for each tokenizer layout against PyPI tokenizers
	@cmake --preset bench > /dev/null && ninja -C build/bench tokenizer_bench
	@scripts/proof-tokenizers

proof-templates: ## The chat templates that TRL ships, against Jinja
	@bench/peers/setup
	@cmake --preset bench > /dev/null && ninja -C build/bench tokenizer_bench
	@scripts/proof-templates

proof-tsan: ## The tests without LibTorch under ThreadSanitizer
	@cmake --preset tsan && ninja -C build/tsan && ctest --test-dir build/tsan --output-on-failure

proof-compose: ## Build the image and run the compose stack with Prometheus
	@deploy/compose_smoke.sh

clean: ## Remove the build folders (not .deps, not runs)
	@rm -rf build
